"""Writes files of single ranks, as those of a checkpoint that ranks did not write together."""

from safetensors._dcp import rank_files
from safetensors.torch import save_file


def save_parts(folder, parts):
    """Writes files of single ranks. `parts` has {name: (offsets, tensor)} of each."""
    folder.mkdir()
    for number, of_rank in enumerate(parts, 1):
        notes = rank_files.metadata({name: offsets for name, (offsets, _) in of_rank.items()})
        tensors = {name: tensor.clone() for name, (_, tensor) in of_rank.items()}
        save_file(tensors, folder / f"{rank_files.model_name('model', number)}.safetensors", notes)


def quarters(tensor):
    """The parts of a matrix that four ranks have, which meet at (3, 4)."""
    rows, columns = (slice(0, 3), slice(3, None)), (slice(0, 4), slice(4, None))
    return [([r.start, c.start], tensor[r, c]) for r in rows for c in columns]

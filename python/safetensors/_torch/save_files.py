"""Saves models of several files."""

from __future__ import annotations

from typing import Any

from .._progress import reported
from .._saving import model_files
from .._saving.arguments import SaveArguments
from .._saving.split import split
from .._typing import Path, ProgressOption, SumsOption
from . import torch
from .checks import _check_dense, _evaluate_tensors_for_save
from .save_file import to_file

__all__ = ["save_files"]


def save_files(
    tensors: dict[str, torch.Tensor],
    folder: Path,
    metadata: dict[str, str] | None = None,
    *,
    max_shard_size: int | str = "5GB",
    name: str = "model",
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
) -> list[str]:
    """Saves a model to a folder, as one file or as shards with an index.

    The files have the names and the content that huggingface_hub gives them. They replace a model
    of the same name as a whole: if the save fails or is killed, the folder holds the old model, or
    `recover` completes the new one. The old model's files are removed.

    Args:
        tensors: as for `save`. They may be views of the files that are replaced.
        folder: made if it does not exist; its parent must exist.
        metadata: strings to store in the header of each file. `{"format": "pt"}` is added unless
            the key exists.
        max_shard_size: the limit of the tensors of a file, in bytes or as "5GB" (decimal) or
            "2GiB". A larger tensor gets a file of its own.
        name: the first part of the names: `model.safetensors`, or
            `model-00001-of-00002.safetensors` and `model.safetensors.index.json`.
        fsync: if true, returns only after the model is on the disk. If a model is replaced, the
            new files are flushed in any case before the first old one is removed.
        progress: true for a bar; or called as `progress(done, total)` with bytes of tensors, on the
            calling thread, until all files are written. If it raises, nothing is saved and the
            exception propagates.
        sums: whether to write the digests of the tensors to `model.sums.json`, as `save_file`.

    Returns:
        The paths of the files with tensors, which `load_files` accepts.

    Raises:
        SafetensorError: as `save_file`; another process is saving to the folder; the index of the
            old model is damaged, or another user's.
        OSError: an operating system call failed.
        ValueError, RuntimeError, NotImplementedError: as `save`; or `max_shard_size` or `name` is
            not valid.
    """
    if isinstance(tensors, dict):
        tensors = dict(tensors)  # other threads may change the caller's
    _evaluate_tensors_for_save(tensors)
    for key, tensor in tensors.items():
        _check_dense(tensor, key)

    def save(names: list[str], target: Any, options: SaveArguments) -> None:
        to_file({each: tensors[each] for each in names}, target, options)

    sizes = {key: tensor.numel() * tensor.element_size() for key, tensor in tensors.items()}
    notes = {"format": "pt", **(metadata or {})}
    with reported(progress, "saving") as report:
        options = SaveArguments(notes, fsync, report, sums)
        shards = split(sizes, max_shard_size)
        return model_files.save_files(shards, sizes, save, folder, name, options)

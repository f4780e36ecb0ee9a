"""safetensors.dcp with several ranks: the files are those of the whole tensors."""

import pytest
import torch  # noqa: F401  (the ranks need it)

from support import children

COMMON = """
    import os, pathlib
    import torch
    import torch.distributed as dist
    from safetensors.dcp import StorageWriter, consolidate
    from safetensors.torch import load_files, save_files
    from support import dcp_cases, ranks

    folder, world = pathlib.Path(sys.argv[1]), int(sys.argv[2])

    def files(path):
        return {each.name: each.read_bytes() for each in path.iterdir()}
"""

SAVES = (
    COMMON
    + """
    def rank(number):
        for case, make in dcp_cases.CASES.items():
            if world == 1 and case != "one dimension":
                continue
            whole, state = make(world)
            for limit in ("5GB", 150):
                ours, expected = folder / f"{case} {limit}", folder / f"{case} {limit} expected"
                dcp_cases.save(state, StorageWriter(ours, max_shard_size=limit))
                if number == 0:
                    save_files(whole, expected, max_shard_size=limit)
                    assert files(ours) == files(expected), case
                    assert (len(files(ours)) > 1) == (limit == 150)
                    print(case, limit)

    ranks.run(rank, world)
    """
)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_files_are_those_of_the_whole_tensors(tmp_path, world):
    """Byte for byte, for all placements, as one file and as shards."""
    printed = children.run(SAVES, tmp_path, world)
    assert len(printed.splitlines()) == (2 if world == 1 else 6)

"""safetensors.dcp with several ranks: the files are those of the whole tensors."""

import pytest
import torch  # noqa: F401  (the ranks need it)

from support import children, forked

pytestmark = pytest.mark.slow

COMMON = """
    import os, pathlib
    import torch
    import torch.distributed as dist
    from safetensors.dcp import StorageWriter, consolidate
    from safetensors.torch import load_files, save_files
    from support import dcp_cases, ranks

    folder, world = pathlib.Path(sys.argv[1]), int(sys.argv[2])

    def files(path):
        return {
            each.name: os.listdir(each) if each.is_dir() else each.read_bytes()
            for each in path.iterdir()
        }
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
    printed = children.run(SAVES, tmp_path, world, imports=forked.TORCH)
    assert len(printed.splitlines()) == (2 if world == 1 else 6)


FAILS = (
    COMMON
    + """
    import gc, signal
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Failing(DefaultSavePlanner):
        def resolve_data(self, item):
            if dist.get_rank() == 1:
                raise ValueError("no values")
            return super().resolve_data(item)

    def rank(number):
        torch.manual_seed(0)
        whole, state = dcp_cases.two_dimensions(world)
        writer = StorageWriter(folder, max_shard_size=150)
        dcp_cases.save({"old": torch.ones(100), "b": torch.ones(3)}, writer)
        before = files(folder)
        assert len(before) == 3
        writer = StorageWriter(folder)
        try:
            dcp_cases.dcp.save(state, storage_writer=writer, planner=Failing())
        except CheckpointException as error:
            assert isinstance(error.failures[1][0], ValueError)
            assert list(error.failures) == [1]
        else:
            raise AssertionError("not raised")
        dist.barrier()
        left = files(folder)
        assert {each: left[each] for each in before} == before
        assert all(each.startswith(".") for each in left.keys() - before.keys())
        dist.barrier()
        writer.reset()
        dist.barrier()
        assert files(folder) == before
        dist.barrier()
        dcp_cases.save(state, StorageWriter(folder))
        assert files(folder).keys() == {"model.safetensors"}

    ranks.run(rank, world)
    """
)


def test_a_rank_that_fails(tmp_path):
    """All ranks get its error. The old model stays, and reset() removes the new files."""
    children.run(FAILS, tmp_path, 2, imports=forked.TORCH)


KILLED = (
    COMMON
    + """
    import signal
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Dying(DefaultSavePlanner):
        def resolve_data(self, item):
            if dist.get_rank() == int(sys.argv[3]) and item.index.fqn == "both":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_data(item)

    def rank(number):
        dcp_cases.save({"old": torch.ones(100)}, StorageWriter(folder))
        _, state = dcp_cases.two_dimensions(world)
        dcp_cases.dcp.save(state, storage_writer=StorageWriter(folder), planner=Dying())

    try:
        ranks.run(rank, world)
    except torch.multiprocessing.ProcessExitedException as error:
        assert error.signal_name == "SIGKILL"
    except torch.multiprocessing.ProcessRaisedException as error:  # the other one was seen first
        assert "Connection" in str(error)
    else:
        raise AssertionError("no rank was killed")
    left = files(folder)
    assert all(each.startswith(".") for each in left.keys() - {"model.safetensors"})
    assert load_files(folder).keys() == {"old"}

    def again(number):
        _, state = dcp_cases.two_dimensions(world)
        dcp_cases.save(state, StorageWriter(folder))

    ranks.run(again, world)
    assert files(folder).keys() == {"model.safetensors"}
    assert "both" in load_files(folder)
    """
)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed(tmp_path, killed):
    """The old model can be loaded, and the next save removes what is left."""
    children.run(KILLED, tmp_path, 2, killed, imports=forked.TORCH)


OWN_FILES = (
    COMMON
    + """
    import warnings
    from safetensors import dcp

    def rank(number, is_coherent):
        machine = {"boot_id": str(number), "type": 0x0BD00BD0 if is_coherent else 0x6969}
        site_of = dcp.site_of
        dcp.site_of = lambda folder: site_of(folder)._replace(**machine)
        for case, make in dcp_cases.CASES.items():
            whole, state = make(world)
            ours = folder / f"{case} {is_coherent}"
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                dcp_cases.save(state, StorageWriter(ours))
            warned = [each for each in caught if "consolidate" in str(each.message)]
            assert len(warned) == (number == 0 and not is_coherent)
            if number:
                continue
            expected = folder / f"{case} {is_coherent} expected"
            save_files(whole, expected)
            if not is_coherent:
                names = {f"shard-0000{i}-model-00001-of-00001.safetensors" for i in (1, 2)}
                assert files(ours).keys() == names
                consolidate(ours, folder / f"{case} consolidated")
                # Whole tensors are in the order of the ranks' files: one file does not show it.
                ours = folder / f"{case} consolidated"
            assert files(ours) == files(expected)
            print(case, is_coherent)

    for is_coherent in (False, True):
        ranks.run(rank, world, is_coherent)
    """
)


def test_ranks_on_other_machines(tmp_path):
    """They write files of their own, except on parallel file systems; consolidate() makes the
    same model of them."""
    printed = children.run(OWN_FILES, tmp_path, 2, imports=forked.TORCH)
    assert len(printed.splitlines()) == 6


OTHER_FOLDER = (
    COMMON
    + """
    from safetensors import dcp
    from torch.distributed.checkpoint.api import CheckpointException

    def rank(number):
        own = folder / str(number)
        site_of = dcp.site_of
        dcp.site_of = lambda _: site_of(folder)  # as if they were the same
        own.mkdir()
        try:
            dcp_cases.save({"w": torch.ones(3), "v": torch.ones(3)}, StorageWriter(own))
        except CheckpointException as error:
            assert isinstance(error.failures[1][0], FileNotFoundError)
        else:
            raise AssertionError("not raised")

    ranks.run(rank, world)
    """
)


def test_ranks_that_do_not_find_the_file(tmp_path):
    """An error, even if the folder seemed to be the same."""
    children.run(OTHER_FOLDER, tmp_path, 2, imports=forked.TORCH)

"""safetensors.dcp.StorageReader with several ranks: each gets its parts of the saved tensors."""

import pytest
import torch  # noqa: F401  (the ranks need it)

from support import children, forked

COMMON = """
    import os, pathlib, warnings
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from safetensors import SafetensorError
    from safetensors.dcp import StorageReader, StorageWriter
    from safetensors.torch import load_files, load_into, plan_placements, save_files
    from support import dcp_cases, ranks

    folder = pathlib.Path(sys.argv[1])

    def local(tensor):
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def same(found, expected):
        found, expected = local(found).contiguous(), local(expected).contiguous()
        return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(
            found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))

    def zeroed(state):
        for tensor in state.values():
            local(tensor).detach().zero_()
        return state

    def check(found, expected):
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert same(found[name], tensor), name
"""

RESHARDED = (
    COMMON
    + """
    torch.manual_seed(0)
    WHOLE = {
        "rows": dcp_cases.random(13, 6),
        "columns": dcp_cases.random(5, 11, dtype=torch.bfloat16),
        "few rows": dcp_cases.random(2, 3, dtype=torch.int64),
        "cube": dcp_cases.random(3, 7, 4, dtype=torch.float16),
        "bytes": dcp_cases.random(3, 2, 9, dtype=torch.float8_e4m3fn),
        "replicated": dcp_cases.random(4, 4, dtype=torch.float64),
        "plain": dcp_cases.random(3, 4),
        "number": torch.tensor(7),
        "empty": torch.zeros(0, 3),
    }
    # The placements by 4, 3 and 2 ranks: rows become columns and rows again. None is plain.
    PLACES = {
        4: [Shard(0), Shard(1), Shard(0), Shard(1), Shard(2), Replicate(), None, None, Shard(0)],
        3: [Shard(1), Shard(0), Shard(0), Shard(0), Shard(1), Shard(0), None, None, Shard(1)],
        2: [Shard(0), Shard(1), Shard(1), Shard(2), Shard(2), Shard(1), None, None, None],
    }

    def state_of(world):
        mesh = init_device_mesh("cpu", (world,))
        return {
            name: tensor.clone() if place is None
            else distribute_tensor(tensor.clone(), mesh, [place], src_data_rank=None)
            for (name, tensor), place in zip(WHOLE.items(), PLACES[world], strict=True)
        }

    def save(state, path, own_files):
        if not own_files:
            dcp_cases.save(state, StorageWriter(path, max_shard_size=300))
            return
        from safetensors import dcp as module
        site_of = module.site_of  # as if each rank ran on a machine of its own
        module.site_of = lambda at: site_of(at)._replace(boot_id=str(dist.get_rank()), type=0x6969)
        dcp_cases.save(state, StorageWriter(path))

    def rank(number, world, before, own_files):
        expected = state_of(world)
        if before:
            state = zeroed(state_of(world))
            dcp.load(state, storage_reader=StorageReader(folder / str(before)))
            check(state, expected)
            expected = state
        save(expected, folder / str(world), own_files)
        if number == 0:
            print(world, len(os.listdir(folder / str(world))))

    own_files = sys.argv[2] == "own files"
    for world, before in ((4, None), (3, 4), (2, 3)):
        ranks.run(rank, world, world, before, own_files)
    found = {name: torch.zeros_like(tensor) for name, tensor in WHOLE.items()}
    dcp.load(found, storage_reader=StorageReader(folder / "2"))
    check(found, WHOLE)
    if not own_files:
        check(load_files(folder / "2"), WHOLE)
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one model", "own files"])
def test_four_ranks_then_three_then_two(tmp_path, way):
    """Every value is that of the first save: through models, and through files of single ranks."""
    printed = children.run(RESHARDED, tmp_path, way, imports=forked.TORCH).split()
    assert printed[::2] == ["4", "3", "2"]
    if way == "one model":
        assert all(int(count) > 3 for count in printed[1::2])
    else:
        assert printed[1::2] == ["4", "3", "2"]  # a file of each rank


PLACED = (
    COMMON
    + """
    def rank(number, world):
        for case, make in dcp_cases.CASES.items():
            if case == "two dimensions" and world == 2:
                continue
            whole, state = make(world)
            path = folder / f"{case} {world}"
            if number == 0:
                save_files(whole, path, max_shard_size=500)
            dist.barrier()
            expected = {name: local(tensor).clone() for name, tensor in state.items()}
            dcp.load(zeroed(state), storage_reader=StorageReader(path))
            check(state, expected)
            if case == "modules":
                assert all(isinstance(each, DTensor) for each in state.values() if each.dim())
                kinds = {type(p).__name__ for each in state.values() if each.dim()
                         for p in each.placements}
                assert ("_StridedShard" in kinds) == (world == 4), kinds
                by_load_into(path, zeroed(state), expected, whole)
            if number == 0:
                print(case, world)

    def by_load_into(path, state, expected, whole):
        parts = {}
        for name, tensor in state.items():
            if isinstance(tensor, DTensor):
                parts |= plan_placements(tensor.device_mesh, {name: tensor.placements})
        assert load_into(state, path, parts=parts) == ([], [])
        check(state, expected)
        for name, tensor in state.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            assert torch.equal(full, whole[name])

    for world in (2, 4):
        ranks.run(rank, world, world)
    """
)


@pytest.mark.slow
def test_all_placements(tmp_path):
    """Rows, columns and both, FSDP2 alone and with tensor parallelism, and load_into."""
    printed = children.run(PLACED, tmp_path, imports=forked.TORCH)
    assert len(printed.splitlines()) == 5


MESHES = (
    COMMON
    + """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    def rank(number):
        one, two = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
        places = [(one, [each]) for each in (Replicate(), Shard(0), Shard(1))]
        for first in (Replicate(), Shard(0), Shard(1)):
            places += [(two, [first, each]) for each in (Replicate(), Shard(0), Shard(1))]
        whole = {"even": torch.rand(4, 4), "uneven": torch.rand(3, 5), "one": torch.rand(1, 1)}
        for tensor in whole.values():
            dist.broadcast(tensor, 0)

        def state(of_source):
            return {
                f"{name} {i} {j}": distribute_tensor(
                    tensor.clone(), *places[i if of_source else j], src_data_rank=None)
                for name, tensor in whole.items()
                for i in range(len(places)) for j in range(len(places))
            }

        dcp_cases.save(state(True), StorageWriter(folder / "model", max_shard_size="2kB"))
        dcp_cases.save(
            state(True), HuggingFaceStorageWriter(str(folder / "ranks"), save_distributed=True))
        expected = state(False)
        for saved in ("model", "ranks"):
            found = zeroed(state(False))
            dcp.load(found, storage_reader=StorageReader(folder / saved))
            check(found, expected)
        if number == 0:
            print(len(found), len(os.listdir(folder / "ranks")))

    ranks.run(rank, 4)
    """
)


@pytest.mark.slow
def test_other_meshes_and_placements(tmp_path):
    """Each placement on meshes of one and two axes is loaded as each, also from torch's files."""
    assert children.run(MESHES, tmp_path, imports=forked.TORCH).split() == [str(3 * 12 * 12), "4"]


FAILS = (
    COMMON
    + """
    class Failing(DefaultLoadPlanner):
        def resolve_tensor(self, item):
            if dist.get_rank() == 1:
                raise ValueError("no memory")
            return super().resolve_tensor(item)

    class Changing(DefaultLoadPlanner):
        def finish_plan(self, plan):
            dist.barrier()
            if dist.get_rank() == 1:
                os.utime(folder / "model" / "model.safetensors", (1, 1))
            dist.barrier()
            return super().finish_plan(plan)

    def raised(state, path, planner=None):
        try:
            dcp.load(state, storage_reader=StorageReader(path), planner=planner)
        except CheckpointException as error:
            return error.failures
        raise AssertionError("not raised")

    def rank(number):
        whole, state = dcp_cases.one_dimension(2)
        if number == 0:
            save_files(whole, folder / "model")
            save_files(whole, folder / "bad", max_shard_size=200)
            os.truncate(sorted((folder / "bad").glob("*.safetensors"))[1], 50)
        dist.barrier()
        found = raised(state, folder / "model", Failing())
        assert list(found) == [1] and isinstance(found[1][0], ValueError), found
        found = raised(state, folder / "model", Changing())
        assert sorted(found) == [0, 1], found
        for error, _ in found.values():
            assert isinstance(error, SafetensorError) and error.code == "file_changed"
        found = raised(state, folder / "bad")
        assert sorted(found) == [0, 1] and "-00002-of-" in str(found[1][0]), found
        found = raised(state, folder / ("model" if number == 0 else "absent"))
        assert list(found) == [1] and "absent" in str(found[1][0]), found
        # The group is usable.
        expected = {name: local(tensor).clone() for name, tensor in state.items()}
        dcp.load(zeroed(state), storage_reader=StorageReader(folder / "model"))
        check(state, expected)

    ranks.run(rank, 2)
    """
)


@pytest.mark.slow
def test_a_rank_that_fails(tmp_path):
    """All ranks get its error, and the group stays usable."""
    children.run(FAILS, tmp_path, imports=forked.TORCH)


KILLED = (
    COMMON
    + """
    import signal, time

    class Dying(DefaultLoadPlanner):
        def resolve_tensor(self, item):
            if dist.get_rank() == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().resolve_tensor(item)

    def rank(number):
        whole, state = dcp_cases.one_dimension(2)
        if number == 0:
            save_files(whole, folder)
        dist.barrier()
        dcp.load(state, storage_reader=StorageReader(folder), planner=Dying())

    begin = time.monotonic()
    try:
        ranks.run(rank, 2)
    except torch.multiprocessing.ProcessExitedException as error:
        assert error.signal_name == "SIGKILL"
    except torch.multiprocessing.ProcessRaisedException as error:  # the other one was seen first
        assert "Connection" in str(error)
    else:
        raise AssertionError("no rank was killed")
    assert time.monotonic() - begin < ranks.SECONDS
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed(tmp_path, killed):
    """The other one does not wait for it."""
    children.run(KILLED, tmp_path, killed, imports=forked.TORCH)

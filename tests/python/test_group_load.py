"""load_files by the ranks of a group: what each rank gets, and what is read."""

import contextlib
import datetime
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

# Imported here, since the ranks, which are forked, count what they read.
from safetensors._group.files import stream  # noqa: E402
from safetensors._load_arguments import LoadArguments  # noqa: E402
from safetensors.plan import SKIP, Shard  # noqa: E402
from safetensors.torch import load_files, plan_placements, save_file, save_files  # noqa: E402
from support import memory  # noqa: E402
from support.rank_faults import values  # noqa: E402
from support.servers import RangeServer  # noqa: E402

pytestmark = pytest.mark.slow

LIMIT = datetime.timedelta(seconds=20)


def model():
    """Tensors of many kinds and sizes, some of several pieces."""
    generator = torch.Generator().manual_seed(1)
    tensors = {"scalar": torch.tensor(7), "empty": torch.empty(0, 3), "flags": torch.ones(5) > 0}
    for layer in range(4):
        for name, shape in (("up", (64, 1500)), ("down", (300, 1024)), ("norm", (33,))):
            tensors[f"layers.{layer}.{name}"] = torch.randn(shape, generator=generator)
        tensors[f"layers.{layer}.qkv"] = torch.randn(96, 40, generator=generator).bfloat16()
    tensors["embedding"] = torch.randn(6000, 1024, generator=generator)
    tensors["experts"] = torch.randn(6, 31, 70, generator=generator).half()
    tensors["wide"] = torch.arange(3_000_000).view(1, -1)
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_files(model(), path, max_shard_size=16 << 20)
    return path


def tensor_parallel(rank, size):
    return {
        "*.up": Shard(0, rank, size),
        "*.down": Shard(1, rank, size),
        "*.qkv": Shard(0, rank, size, blocks=(48, 24, 24)),
        "experts": (slice(rank, None, size), slice(None), slice(0, 35)),
        "embedding": Shard(0, rank, size),
        "wide": Shard(1, rank, size),
        "flags": SKIP,
        "*": None,
    }


def different(rank, size):
    """Some tensors for one rank, some for all but one, overlaps, and reversed or repeated parts."""
    return {
        "layers.0.*": None if rank == 0 else SKIP,
        "layers.1.*": None if rank != 0 else SKIP,
        "layers.2.down": (slice(None), slice(100 * rank, 100 * rank + 150)),
        "layers.2.up": (slice(1, None, 2),) if rank == 1 else None,
        "layers.3.qkv": ([slice(10 + rank, 20), slice(0, 10)],),
        "embedding": (slice(1000 * rank, 1000 * rank + 1700),) if rank < 2 else SKIP,
        "scalar": None,
        "empty": None,
    }


PLANS = {
    "whole": lambda rank, size: None,
    "tensor parallel": tensor_parallel,
    "different": different,
    "one rank only": lambda rank, size: None if rank == size - 1 else {"x": SKIP},
}


def loads_as_alone(rank, size, filenames):
    for name, make in PLANS.items():
        plan = make(rank, size)
        alone = load_files(filenames, plan=plan)
        together = load_files(filenames, plan=plan, group=dist.group.WORLD, timeout=LIMIT)
        assert [*together] == [*alone], name
        for key, tensor in alone.items():
            assert together[key].dtype == tensor.dtype
            assert torch.equal(together[key], tensor), (name, key)
            assert together[key].untyped_storage().nbytes() == tensor.nbytes  # keeps no bucket
    return True


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_rank_gets_what_it_gets_alone(folder, size):
    assert values(size, loads_as_alone, size, folder) == [True] * size


def test_more_ranks_than_tensors(tmp_path):
    save_file({"only": torch.arange(10)}, tmp_path / "one.safetensors")
    assert values(4, loads_as_alone_one, tmp_path / "one.safetensors") == [45] * 4


def loads_as_alone_one(rank, filename):
    loaded = load_files([filename], group=dist.group.WORLD, timeout=LIMIT)
    return int(loaded["only"].sum())


def test_every_dtype(tmp_path):
    from safetensors._torch.dtypes import _TYPES

    tensors = {
        code: torch.arange(48, dtype=torch.uint8).view(2, 24).view(dtype)
        for code, dtype in _TYPES.items()
        if dtype != torch.bool
    }
    tensors["BOOL"] = torch.tensor([True, False])
    save_file(tensors, tmp_path / "x.safetensors")
    assert values(2, loads_every_dtype, tmp_path / "x.safetensors", len(tensors)) == [True] * 2


def loads_every_dtype(rank, filename, count):
    for plan in (None, {"BOOL": None, "*": Shard(0, rank, 2)}, {"BOOL": None, "*": Shard(1, 0, 1)}):
        alone = load_files(filename, plan=plan)
        together = load_files(filename, plan=plan, group=dist.group.WORLD, timeout=LIMIT)
        assert len(together) == count
        for name, tensor in alone.items():
            assert together[name].dtype == tensor.dtype
            assert torch.equal(together[name].view(torch.uint8), tensor.view(torch.uint8)), name
    return True


def loads_keys(rank, folder):
    given = {"group": dist.group.WORLD, "timeout": LIMIT}
    named = load_files(folder, keys=["scalar", f"layers.{rank}.norm"], **given)
    fitting = load_files(folder, keys=lambda name: name.startswith(f"layers.{rank}."), **given)
    none = load_files(folder, keys=[] if rank else ["scalar"], **given)
    return sorted(named), len(fitting), len(none)


def test_keys_differ(folder):
    assert values(2, loads_keys, folder) == [
        (["layers.0.norm", "scalar"], 4, 1),
        (["layers.1.norm", "scalar"], 4, 0),
    ]


def loads_placements(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    expected = model()
    for shape, all_placements in (
        ((4,), [(Shard(0),), (Shard(1),), (Replicate(),)]),
        ((2, 2), [(Shard(0), Shard(1)), (Shard(1), Shard(1)), (Replicate(), Shard(1))]),
    ):
        mesh = init_device_mesh("cpu", shape)
        for placements in all_placements:
            plan = plan_placements(mesh, {"*.down": placements, "*.up": placements})
            loaded = load_files(folder, plan=plan, group=dist.group.WORLD, timeout=LIMIT)
            assert len(loaded) == 8
            for name, tensor in loaded.items():
                same = distribute_tensor(expected[name], mesh, placements)
                assert tensor.placements == same.placements
                assert torch.equal(tensor.to_local(), same.to_local())
    return True


def test_dtensors_equal_distribute_tensor(folder):
    pytest.importorskip("torch.distributed.tensor")  # here, so that not each rank imports it
    assert values(4, loads_placements, folder) == [True] * 4


def reads(rank, filenames, plan):
    before = memory.bytes_read()
    load_files(filenames, plan=plan(rank), group=dist.group.WORLD, timeout=LIMIT)
    return memory.bytes_read() - before


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["whole", "tensor parallel"])
def test_files_are_read_once(folder, size, name):
    plan = PLANS[name]
    taken = sum(tensor.nbytes for key, tensor in model().items() if key != "flags")
    found = values(size, reads, folder, lambda rank: plan(rank, size))
    headers = (64 << 10) * 5 * size  # of the files, the index, and what gloo reads in /proc
    if name == "tensor parallel":
        taken += sum(tensor.nbytes for key, tensor in model().items() if key == "experts") * size
    samples = (4 << 10) * 64 * size
    assert taken <= sum(found) <= taken + headers + samples
    assert max(found) <= min(found) + (16 << 20)  # the most that one rank reads for all


@contextlib.contextmanager
def served(folder):
    files = {f"/m/{each}": pathlib.Path(folder, each) for each in os.listdir(folder)}
    with RangeServer(files) as server:
        yield server


def row_parallel(rank, size):
    return {"*.down": Shard(1, rank, size), "wide": Shard(1, rank, size), "*": None}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("plan", [lambda *_: None, row_parallel], ids=["whole", "row parallel"])
def test_urls_are_read_once(folder, size, plan):
    index = folder / "model.safetensors.index.json"
    shards = sorted(folder.glob("*.safetensors"))
    with served(folder) as server:
        found = values(size, reads, server.url("/m/"), lambda rank: plan(rank, size))
        assert len(found) == size
        total = sum(os.stat(path).st_size for path in [index, *shards])
        assert total <= server.bytes_sent + (64 << 10)
        assert server.bytes_sent <= 1.001 * total + size * len(shards)
        indexes = [each for each in server.log if each.path.endswith(".json")]
        assert len(indexes) == 1
        # The single file that the folder could have instead is asked for beside the index.
        first = [each.path for each in server.log if each.range == "bytes=0-524287"]
        asked = ["model.safetensors", *(path.name for path in shards)]
        assert sorted(first) == sorted(f"/m/{name}" for name in asked)


def test_urls_give_what_files_give(folder):
    with served(folder) as server:
        assert values(2, loads_as_files, server.url("/m/"), folder) == [True] * 2


def loads_as_files(rank, url, folder):
    for make in (tensor_parallel, different):
        plan = make(rank, 2)
        together = load_files(url, plan=plan, group=dist.group.WORLD, timeout=LIMIT)
        for name, tensor in load_files(folder, plan=plan).items():
            assert torch.equal(together[name], tensor), name
    return True


def reports(rank, folder):
    calls = []
    load_files(
        folder,
        plan=None if rank else {"layers.*": None},
        group=dist.group.WORLD,
        timeout=LIMIT,
        progress=lambda *call: calls.append(call),
    )
    assert calls == sorted(calls)
    assert len({total for _, total in calls}) == 1
    return calls[-1]


def test_progress_is_of_what_a_rank_takes(folder):
    everything = sum(tensor.nbytes for tensor in model().values())
    layers = sum(tensor.nbytes for name, tensor in model().items() if name.startswith("layers"))
    assert values(2, reports, folder) == [(layers, layers), (everything, everything)]


def streams(rank, folder):
    plan = tensor_parallel(rank, 2)
    names = []
    alone = load_files(folder, plan=plan)
    options = LoadArguments(folder, plan=plan)
    for name, tensor in stream(dist.group.WORLD, options, timeout=LIMIT):
        names.append(name)
        assert torch.equal(tensor, alone[name])
    assert sorted(names) == sorted(alone)
    return names


def test_a_stream_has_one_order(folder):
    first, second = values(2, streams, folder)
    shared = [name for name in first if "experts" not in name]
    assert shared == [name for name in second if "experts" not in name]


def refuses(rank, folder):
    given = {"group": dist.group.WORLD, "timeout": LIMIT}
    with pytest.raises(ValueError, match='backend is "mmap"'):
        load_files(folder, backend="mmap", **given)
    with pytest.raises(TypeError, match="device is a dict"):
        load_files(folder, {"*": "cpu"}, **given)
    with pytest.raises(ValueError, match="keys and plan"):
        load_files(folder, keys=["scalar"], plan={"*": None}, **given)
    with pytest.raises(Exception, match="rank .: The tensors need"):
        load_files(folder, budget_bytes=1000, **given)
    assert len(load_files(folder, "meta", **given)) == len(model())
    return load_files(folder, keys=["scalar"], **given)["scalar"].item()


def test_arguments_that_do_not_go_with_a_group(folder):
    assert values(2, refuses, folder) == [7] * 2


def test_a_time_limit_is_for_a_group(folder):
    with pytest.raises(ValueError, match="timeout is for loads with a group"):
        load_files(folder, timeout=LIMIT)


def loads_alone(rank, folder):
    loaded = load_files(folder, group=dist.group.WORLD, timeout=LIMIT)
    before = loaded["scalar"].clone()
    loaded["scalar"] += 1
    return before.item(), sorted(loaded) == sorted(model())


def test_a_group_of_one_rank(folder):
    assert values(1, loads_alone, folder) == [(7, True)]

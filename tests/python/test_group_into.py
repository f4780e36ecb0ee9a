"""load_into by the ranks of a group."""

import datetime

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from safetensors.plan import Shard  # noqa: E402
from safetensors.torch import load_file, load_files, load_into, save_file  # noqa: E402
from support.rank_faults import values  # noqa: E402

LIMIT = datetime.timedelta(seconds=20)


@pytest.fixture(scope="module")
def filename(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    tensors = {f"{i}.weight": torch.randn(64, 3000) for i in range(8)}
    tensors |= {
        "big.weight": torch.randn(3000, 2000),
        "bias": torch.randn(11),
        "step": torch.ones(()),
    }
    save_file(tensors, path)
    return path


def into(tensors, filename, **given):
    return load_into(tensors, filename, group=dist.group.WORLD, timeout=LIMIT, **given)


def fills(rank, filename):
    expected = load_file(filename)
    whole = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    assert into(whole, filename) == ([], [])
    assert all(torch.equal(whole[name], expected[name]) for name in expected)

    part = Shard(1, rank, 2)
    matrix = torch.zeros(3000, 1500)
    columns = {
        "big.weight": matrix[:, 200:1200],  # not contiguous
        "0.weight": torch.zeros(64, 1500),
        "bias": torch.zeros(22)[::2],
    }
    missing, unexpected = into(
        columns, filename, strict=False, parts={"big.weight": part, "0.weight": part}
    )
    assert missing == []
    assert len(unexpected) == len(expected) - 3
    assert torch.equal(columns["bias"], expected["bias"])
    for name in ("big.weight", "0.weight"):
        assert torch.equal(columns[name], expected[name][part.part(expected[name].shape)])
    assert not matrix[:, :200].any()
    assert not matrix[:, 1200:].any()

    module = torch.nn.ParameterDict({"bias": torch.nn.Parameter(torch.zeros(11))})
    only = into(module, filename, strict=False) if rank == 0 else into({}, filename, strict=False)
    assert only[0] == []
    assert torch.equal(module["bias"].detach(), expected["bias"]) == (rank == 0)
    return True


def test_each_rank_fills_its_own(filename):
    assert values(2, fills, filename) == [True, True]


def refuses(rank, filename):
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(filename).items()}
    if rank == 1:
        del tensors["bias"]
    with pytest.raises(Exception, match="(?s)rank 1: RuntimeError: .*bias") as caught:
        into(tensors, filename)
    assert isinstance(caught.value.__cause__, RuntimeError) == (rank == 1)
    assert not any(tensor.any() for tensor in tensors.values())  # nothing was written
    tensors["bias"] = torch.zeros(3 if rank == 0 else 11)
    with pytest.raises(Exception, match=r"rank 0: .*it is of shape \[3\], the file's is \[11\]"):
        into(tensors, filename)
    assert not any(tensor.any() for tensor in tensors.values())
    return True


def test_all_is_checked_before_a_byte_is_written(filename):
    assert values(2, refuses, filename) == [True, True]


def fills_dtensors(rank, filename):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.distributed.tensor import Shard as Sharded

    from safetensors.torch import plan_placements

    mesh = init_device_mesh("cpu", (2,))
    expected = load_file(filename)
    for placements in ((Sharded(0),), (Sharded(1),), (Replicate(),)):
        target = distribute_tensor(torch.zeros(3000, 2000), mesh, placements)
        plan = plan_placements(mesh, {"big.weight": placements})
        into({"big.weight": target}, filename, strict=False, parts=plan)
        assert torch.equal(target.full_tensor(), expected["big.weight"])
    return True


def test_dtensors(filename):
    pytest.importorskip("torch.distributed.tensor")
    assert values(2, fills_dtensors, filename) == [True, True]


def test_a_time_limit_is_for_a_group(filename):
    with pytest.raises(ValueError, match="timeout is for loads with a group"):
        load_into({}, filename, timeout=LIMIT)


def fills_alone(rank, filename):
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_files(filename).items()}
    into(tensors, filename)
    return tensors["step"].item()


def test_a_group_of_one_rank(filename):
    assert values(1, fills_alone, filename) == [1.0]

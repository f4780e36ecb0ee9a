"""plan_placements: rules from DTensor placements."""

import inspect
import itertools

import pytest
import torch

from safetensors.plan import SKIP
from safetensors.torch import (
    load_files,
    load_into,
    plan_placements,
    save_file,
    stream_files,
)
from support import ranks as processes

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
placement_types = pytest.importorskip("torch.distributed.tensor.placement_types")
tensor_module = pytest.importorskip("torch.distributed.tensor")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
Replicate, Shard = tensor_module.Replicate, tensor_module.Shard
StridedShard = placement_types._StridedShard

ONE = [Replicate(), Shard(0), Shard(1), Shard(-1)]
# Before 2.10, distribute_tensor splits rows that do not divide otherwise than FSDP2 does.
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10):
    ONE += [StridedShard(0, split_factor=2), StridedShard(1, split_factor=3)]
has_source = "src_data_rank" in inspect.signature(tensor_module.distribute_tensor).parameters
TENSORS = {
    "even": torch.arange(8 * 8).reshape(8, 8),
    "uneven": torch.arange(7 * 5).reshape(7, 5),
    "short": torch.arange(3 * 2).reshape(3, 2),
    "cube": torch.arange(5 * 9 * 2).reshape(5, 9, 2),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("placements") / "a.safetensors"
    save_file(TENSORS, path)
    return path


@pytest.fixture
def ranks():
    """Yields a device mesh for each rank of a shape, one after the other, without processes."""

    def each(shape):
        size = torch.Size(shape).numel()
        for rank in range(size):
            dist.init_process_group("fake", rank=rank, world_size=size, store=fake_pg.FakeStore())
            try:
                mesh = tensor_module.DeviceMesh("cpu", torch.arange(size).reshape(shape))
                yield mesh
            finally:
                dist.destroy_process_group()

    return each


@pytest.mark.skipif(not has_source, reason="this torch's distribute_tensor needs processes")
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2), (2, 4)])
def test_parts_are_those_of_distribute_tensor(path, ranks, shape):
    checked = set()
    for mesh in ranks(shape):
        for placements in itertools.product(ONE, repeat=len(shape)):
            rules = plan_placements(mesh, dict.fromkeys(TENSORS, placements))
            found = load_files(path, plan=rules)
            for name, tensor in TENSORS.items():
                wanted = tensor_module.distribute_tensor(
                    tensor, mesh, placements, src_data_rank=None
                )
                assert isinstance(found[name], tensor_module.DTensor)
                assert found[name].shape == tensor.shape
                assert found[name].stride() == wanted.stride()
                assert found[name].placements == wanted.placements
                assert torch.equal(found[name].to_local(), wanted.to_local()), (name, placements)
                checked.add((name, placements))
    assert len(checked) == len(TENSORS) * len(ONE) ** len(shape)


def test_parts_are_those_of_a_model_of_fsdp2_and_tensor_parallelism(tmp_path):
    """Rows that do not divide are the case in which torch's own functions differ."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard there")

    def rank(_number):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        for rows in (8, 7, 6, 5, 3):
            module = torch.nn.Linear(2, rows, bias=False)
            with torch.no_grad():
                module.weight.copy_(torch.arange(rows * 2.0).reshape(rows, 2))
            module = parallelize_module(module, mesh["tensor"], ColwiseParallel())
            fsdp.fully_shard(module, mesh=mesh["data"])
            weight = module.state_dict()["weight"]
            rules = plan_placements(weight.device_mesh, {"weight": weight.placements})
            found = load_files(tmp_path / f"{rows}.safetensors", plan=rules)["weight"]
            assert torch.equal(found.to_local(), weight.to_local()), (rows, weight.placements)

    for rows in (8, 7, 6, 5, 3):
        weight = torch.arange(rows * 2.0).reshape(rows, 2)
        save_file({"weight": weight}, tmp_path / f"{rows}.safetensors")
    processes.run(rank, 4)


def test_streams_and_tensors_that_exist(path, ranks):
    for mesh in ranks((2,)):
        rules = plan_placements(mesh, {"even": [Shard(1)], "c*": [Replicate()]}) | {"*": SKIP}
        wanted = load_files(path, plan=rules)
        streamed = dict(stream_files(path, plan=rules))
        assert wanted.keys() == streamed.keys() == {"even", "cube"}
        targets = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
        parts = plan_placements(mesh, {"even": [Shard(1)], "c*": [Replicate()]})
        assert load_into(targets, path, strict=False, parts=parts)[0] == []
        for name, tensor in wanted.items():
            for found in (streamed[name], targets[name]):
                assert isinstance(found, tensor_module.DTensor)
                assert torch.equal(found.to_local(), tensor.to_local())


def test_bad_placements(path, ranks):
    for mesh in ranks((2, 2)):
        with pytest.raises(ValueError, match="'a' has 1 placements, but the device mesh has 2"):
            plan_placements(mesh, {"a": [Shard(0)]})
        with pytest.raises(ValueError, match=r"'a': Partial.* is not a placement that a file"):
            plan_placements(mesh, {"a": [Shard(0), tensor_module.Partial()]})
        rules = plan_placements(mesh, {"short": [Shard(2), Replicate()]})
        with pytest.raises(ValueError, match=r"tensor short: .*has no axis 2"):
            load_files(path, plan=rules)
        part = tensor_module.DeviceMesh("cpu", [1 - dist.get_rank()], _init_backend=False)
        if part.get_coordinate() is None:
            with pytest.raises(ValueError, match="not in the device mesh"):
                plan_placements(part, {"a": [Shard(0)]})
        break

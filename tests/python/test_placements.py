"""plan_placements and plan_tp: rules from DTensor placements and transformers' plans."""

import itertools
import pickle

import pytest
import torch

from safetensors.plan import SKIP, resolve
from safetensors.torch import (
    load_files,
    load_into,
    plan_placements,
    plan_tp,
    save_file,
    stream_files,
)

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
placement_types = pytest.importorskip("torch.distributed.tensor.placement_types")
tensor_module = pytest.importorskip("torch.distributed.tensor")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
Replicate, Shard = tensor_module.Replicate, tensor_module.Shard
StridedShard = placement_types._StridedShard

ONE = [Replicate(), Shard(0), Shard(1), Shard(-1), StridedShard(0, split_factor=2)]
ONE.append(StridedShard(1, split_factor=3))
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


MODEL = {
    "model.embed_tokens.weight": torch.arange(48).reshape(12, 4),
    "model.layers.0.q_proj.weight": torch.arange(32).reshape(8, 4),
    "model.layers.0.q_proj.bias": torch.arange(8),
    "model.layers.0.o_proj.weight": torch.arange(32).reshape(4, 8),
    "model.layers.0.o_proj.bias": torch.arange(4),
    "model.layers.0.norm.weight": torch.arange(4),
    "model.layers.0.gate_up.weight": torch.arange(48).reshape(12, 4),
    "model.layers.0.gate_up.bias": torch.arange(12),
    "model.layers.0.qkv.weight": torch.arange(32).reshape(8, 4),
    "model.layers.0.down.weight": torch.arange(48).reshape(4, 12),
    "model.layers.0.experts.gate_up_proj": torch.arange(4 * 8 * 2).reshape(4, 8, 2),
    "model.layers.0.experts.down_proj": torch.arange(4 * 2 * 4).reshape(4, 2, 4),
    "model.layers.0.q_scale": torch.tensor(2.0),
}
TP_PLAN = {
    "embed_tokens": "embedding_rowwise",
    "layers.*.q_proj": "colwise",
    "layers.*.q_scale": "colwise",
    "layers.*.o_proj": "rowwise",
    "layers.*.norm": "replicated_with_grad_allreduce",
    "layers.*.gate_up": "packed_colwise",
    "layers.*.qkv": "packed_colwise",
    "layers.*.down": "packed_rowwise",
    "layers.*.experts.gate_up_proj": "grouped_gemm",
    "layers.*.experts.down_proj": "grouped_gemm",
    "layers.*.experts": "moe_tp_experts",
    "layers": "colwise",
}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_plan_tp(tmp_path, prefix):
    save_file(MODEL, tmp_path / "a.safetensors")
    tp_plan = {prefix + key: style for key, style in TP_PLAN.items()}
    rules = [
        plan_tp(tp_plan, rank, 2, blocks={f"{prefix}layers.*.qkv": (4, 2, 2)}) for rank in (0, 1)
    ]
    found = [load_files(tmp_path, plan=each) for each in rules]
    halves = {
        "embed_tokens.weight": [range(6), range(6, 12)],
        "layers.0.q_proj.weight": [range(4), range(4, 8)],
        "layers.0.q_proj.bias": [range(4), range(4, 8)],
        "layers.0.gate_up.weight": [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]],
        "layers.0.gate_up.bias": [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]],
        "layers.0.qkv.weight": [[0, 1, 4, 6], [2, 3, 5, 7]],
        "layers.0.experts.gate_up_proj": [range(2), range(2, 4)],
        "layers.0.experts.down_proj": [range(2), range(2, 4)],
    }
    columns = {
        "layers.0.o_proj.weight": [range(4), range(4, 8)],
        "layers.0.down.weight": [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]],
    }
    for rank in (0, 1):
        assert found[rank].keys() == MODEL.keys()
        for name, tensor in MODEL.items():
            key = name.removeprefix("model.")
            wanted = tensor
            if key in halves:
                wanted = tensor[list(halves[key][rank])]
            elif key in columns:
                wanted = tensor[:, list(columns[key][rank])]
            assert torch.equal(found[rank][name], wanted), name


def test_bad_tp_plans():
    with pytest.raises(ValueError, match=r"tp_plan\['a.b'\] is 'colwize', a style"):
        plan_tp({"a.b": "colwize"}, 0, 2)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        plan_tp({}, 2, 2)
    for key in ("b", "c"):
        with pytest.raises(ValueError, match=f"blocks has '{key}'"):
            plan_tp({"a": "packed_colwise", "b": "colwise"}, 0, 2, blocks={key: 3})


def test_resolved_tp_plans_are_pickled(tmp_path):
    save_file(MODEL, tmp_path / "a.safetensors")
    plan = resolve(tmp_path, plan_tp(TP_PLAN, 1, 2))
    assert dict(pickle.loads(pickle.dumps(plan))) == dict(plan)

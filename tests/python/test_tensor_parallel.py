"""plan_tp: rules from the tensor-parallel plans of transformers."""

import pickle

import pytest
import torch

from safetensors import SafetensorError
from safetensors._torch.checkpoint_names import Target, _through
from safetensors.plan import resolve
from safetensors.torch import load_files, plan_tp, save_file

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


EXPERTS = 5
WIDE, NARROW = 6, 4
PLAN_OF_EXPERTS = {
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
    "layers.*.mlp.gate": "replicate",
}
GROUPED = dict.fromkeys([*PLAN_OF_EXPERTS][:2], "grouped_gemm") | {
    "layers.*.mlp.experts": "ep_dispatch_experts"
}


def experts(block, gate, up, down):
    """Returns a router, and experts that are tensors of their own, with weights and biases."""
    tensors = {f"model.layers.0.{block}.gate.weight": torch.rand(EXPERTS, NARROW)}
    for number in range(EXPERTS):
        of = f"model.layers.0.{block}.experts.{number}."
        for name in (gate, up):
            tensors[f"{of}{name}.weight"] = torch.rand(WIDE, NARROW)
            tensors[f"{of}{name}.bias"] = torch.rand(WIDE)
        tensors[f"{of}{down}.weight"] = torch.rand(NARROW, WIDE)
        tensors[f"{of}{down}.bias"] = torch.rand(NARROW)
    return tensors


CHECKPOINTS = {
    "mixtral": experts("block_sparse_moe", "w1", "w3", "w2"),
    "qwen": experts("mlp", "gate_proj", "up_proj", "down_proj"),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("style", ["packed_colwise", "packed_rowwise"])
def test_single_experts(tmp_path, kind, style):
    """They are linear layers, whichever way the parameter that they become is laid out."""
    tensors = CHECKPOINTS[kind]
    save_file(tensors, tmp_path / "a.safetensors")
    other = "rowwise" if style == "packed_colwise" else "colwise"
    tp_plan = PLAN_OF_EXPERTS | dict(zip(PLAN_OF_EXPERTS, (style, other)))  # noqa: B905
    for rank in range(3):
        found = load_files(tmp_path, plan=plan_tp(tp_plan, rank, 3))
        mine = slice(2 * rank, 2 * rank + 2)
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            wanted = tensor
            if ".experts." in name:
                is_down = any(word in name for word in ("down_proj", "w2"))
                if tensor.ndim == 2:
                    wanted = tensor[:, mine] if is_down else tensor[mine]
                elif style == "packed_colwise":
                    wanted = tensor if is_down else tensor[mine]
                else:
                    continue  # a bias of a layout of which no checkpoint has single experts
            assert torch.equal(found[name], wanted), name


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_experts_of_ranks(tmp_path, kind):
    """A plan that divides experts loads those that a rank owns: 3 and 2 of 5."""
    tensors = CHECKPOINTS[kind]
    save_file(tensors, tmp_path / "a.safetensors")
    owned = [{"0", "1", "2"}, {"3", "4"}]
    for rank, numbers in enumerate(owned):
        plan = resolve(tmp_path, plan_tp(GROUPED, rank, 2))
        expected = {
            name for name in tensors if ".experts." not in name or name.split(".")[5] in numbers
        }
        assert plan.keys() == expected
        assert set(plan.values()) == {None}


def test_stacked_experts_of_granite(tmp_path):
    """Its tensors have other names than the parameters."""
    tensors = {
        "model.layers.0.block_sparse_moe.input_linear.weight": torch.rand(3, 8, 4),
        "model.layers.0.block_sparse_moe.output_linear.weight": torch.rand(3, 4, 4),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    tp_plan = {
        "layers.*.block_sparse_moe.experts.gate_up_proj": "packed_colwise",
        "layers.*.block_sparse_moe.experts.down_proj": "rowwise",
    }
    found = load_files(tmp_path, plan=plan_tp(tp_plan, 1, 2))
    (stacked, fused), (down, by_input) = tensors.items()
    assert torch.equal(found[stacked], fused[:, [2, 3, 6, 7]])
    assert torch.equal(found[down], by_input[:, :, 2:])


def test_names_that_no_key_fits(tmp_path):
    """Experts, and any tensors if all keys fit nothing, are not loaded whole without a word."""
    unknown = {"layers.0.moe.experts.0.fc.weight": torch.rand(4, 4), "norm": torch.rand(3)}
    save_file(unknown | {"layers.0.q_proj.weight": torch.rand(4, 4)}, tmp_path / "a.safetensors")
    tp_plan = PLAN_OF_EXPERTS | {"layers.*.q_proj": "colwise"}
    text = (
        r"'layers\.0\.moe\.experts\.0\.fc\.weight' fits no key of tp_plan, and no tensor fits "
        r"'layers\.\*\.mlp\.experts\.gate_up_proj', 'layers\.\*\.mlp\.experts\.down_proj'"
    )
    rules = plan_tp(tp_plan, 0, 2)
    with pytest.raises(SafetensorError, match=text):
        resolve(tmp_path, rules)
    plan = resolve(tmp_path, {"*.experts.*": None, **rules})
    assert plan["layers.0.moe.experts.0.fc.weight"] is None
    assert plan["layers.0.q_proj.weight"] is not None
    with pytest.raises(SafetensorError, match=r"tensor fits 'blocks\.\*\.attn': .*pass `model=`"):
        resolve(tmp_path, plan_tp({"blocks.*.attn": "colwise"}, 0, 2))
    assert set(resolve(tmp_path, plan_tp({}, 0, 2)).values()) == {None}


class Chunk:
    dim = 0


class Concatenate:
    dim = 1


class MergeModulelist:
    dim = 0


class Transpose:
    dim0, dim1 = 0, 1


class Interleave:
    dim = 1


@pytest.mark.parametrize(
    ("operations", "shape", "target"),
    [
        (
            [MergeModulelist(), Concatenate()],
            (4, 6, 2),
            {"number": 1, "count": 4, "joined_axis": -2},
        ),
        ([MergeModulelist()], (4, 6, 2), {"number": 1, "count": 4}),
        (
            [Transpose(), MergeModulelist()],
            (4, 6, 2),
            {"number": 1, "count": 4, "is_transposed": True},
        ),
        ([Chunk()], (6, 2), {"cut_axis": -2}),
        ([Transpose(), Transpose()], (6, 2), {}),
        ([Interleave()], (4, 6, 2), {"problem": "transformers applies Interleave to it"}),
    ],
)
def test_operations_of_transformers(operations, shape, target):
    assert _through(operations, Target("a"), shape, 5) == Target("a", **target)

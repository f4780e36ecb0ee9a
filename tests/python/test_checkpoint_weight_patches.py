"""Patches as updates of vLLM's loader: its rules, written anew, and the values they lead to."""

import math
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import delta  # noqa: E402
from safetensors._delta import checkpoint_weight_patches as module  # noqa: E402
from support.engine_stubs import EngineStub  # noqa: E402

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
patches_of = module.checkpoint_weight_patches


def check_rules(patches):
    """What vLLM 0.33 demands of the patches of one call, with the check for repeated indices."""
    assert len({patch.indices is None for patch in patches}) <= 1
    for patch in patches:
        assert patch.name
        assert isinstance(patch.dtype, torch.dtype)
        assert min(patch.shape, default=0) >= 0
        assert patch.values.ndim == 1
        elements = math.prod(patch.shape)
        if patch.indices is None:
            assert patch.values.numel() == elements
            continue
        assert patch.dtype.is_floating_point
        assert patch.indices.ndim == 1
        assert patch.indices.dtype in (torch.int32, torch.int64)
        assert patch.indices.shape == patch.values.shape
        assert not torch.isnan(patch.values).any()
        assert 0 <= int(patch.indices.min()) <= int(patch.indices.max()) < elements
        assert len(patch.indices.unique()) == len(patch.indices)


def load(model, patches):
    """What vLLM does: NaN marks what stays, and the loader copies the rest."""
    check_rules(patches)
    for patch in patches:
        if patch.indices is None:
            model[patch.name] = patch.values.to(patch.dtype).view(patch.shape)
            continue
        marked = torch.full((math.prod(patch.shape),), float("nan"), dtype=patch.dtype)
        marked.index_copy_(0, patch.indices.long(), patch.values)
        marked = marked.view(patch.shape)
        model[patch.name] = torch.where(torch.isnan(marked), model[patch.name], marked)


def same(a, b):
    """Whether all bits of two models are equal."""
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape)
        assert torch.equal(
            a[name].reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8)
        )


def stepped(tensor, every=50):
    """Returns a copy with some elements one step up."""
    made = tensor.clone()
    bits = made.view(-1).view(BITS[tensor.itemsize])
    bits[::every] += 1
    return made


def base_of(dtypes):
    generator = torch.Generator().manual_seed(3)
    return {
        str(dtype): torch.randn(300, 500, generator=generator).add(5).to(dtype) for dtype in dtypes
    }


def test_sparse_patches():
    """Floats with values: no base is needed, and only the changed elements are in them."""
    base = {**base_of(FLOATS), "same": torch.ones(3), "scalar": torch.tensor(2.0)}
    target = {name: stepped(tensor) for name, tensor in base.items()}
    target["same"] = base["same"]
    target["scalar"] = torch.tensor(-0.0)
    sparse, dense = patches_of(delta.diff(base, target, values="set"))
    assert dense == []
    assert sorted(patch.name for patch in sparse) == sorted(set(base) - {"same"})
    for patch in sparse:
        assert patch.indices.dtype == torch.int32
        assert len(patch.values) == (3000 if patch.name != "scalar" else 1)
        assert isinstance(patch.shape, tuple)
    model = dict(base)
    load(model, sparse)
    same(model, target)


def test_differences_need_the_base():
    base = base_of([torch.bfloat16])
    target = {name: stepped(tensor) for name, tensor in base.items()}
    before = {name: tensor.clone() for name, tensor in base.items()}
    patch = delta.diff(base, target)
    with pytest.raises(ValueError, match=r"has differences: with values='set'.*in `base`"):
        patches_of(patch)
    sparse, dense = patches_of(patch, base)
    assert (len(sparse), dense) == (1, [])
    same(base, before)
    model = dict(base)
    load(model, sparse)
    same(model, target)
    with pytest.raises(delta.WrongBaseError):
        patches_of(patch, {name: tensor + 1 for name, tensor in base.items()})


def test_what_is_loaded_whole():
    """NaN among the values, FP8, integers; new tensors and those of another shape or dtype."""
    base = base_of(
        [torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.uint8]
    )
    base |= {"shape": torch.ones(2, 3), "dtype": torch.ones(4), "stays": torch.ones(5)}
    target = {name: stepped(tensor) for name, tensor in base.items()}
    target["torch.float32"][7, 7] = float("nan")
    target |= {"shape": torch.ones(3), "dtype": torch.ones(4, dtype=torch.bfloat16)}
    target |= {"new": torch.arange(6).view(2, 3), "empty": torch.ones(0, 3), "stays": base["stays"]}
    patch = delta.diff(base, target, values="set")
    with pytest.raises(ValueError, match=r"vLLM takes it only whole, which needs this tensor"):
        patches_of(patch)
    sparse, dense = patches_of(patch, base)
    assert sparse == []
    assert {each.name for each in dense} == set(target) - {"stays"}
    model = dict(base)
    load(model, dense)
    same(model, target)


def test_new_tensors_need_no_base():
    made = {"a": torch.ones(2), "b": torch.zeros(2, 0)}
    sparse, dense = patches_of(delta.diff({}, made))
    assert sparse == []
    model = {}
    load(model, dense)
    same(model, made)


def test_removed_tensors():
    patch = delta.diff({"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2)})
    with pytest.raises(ValueError, match="tensor `b` is removed: vLLM can only change tensors"):
        patches_of(patch, {"b": torch.ones(2)})


@pytest.mark.parametrize(
    ("elements", "dtype"), [(1 << 31, torch.int64), ((1 << 31) - 1, torch.int32)]
)
def test_indices_of_large_tensors(elements, dtype):
    """A patch with a tensor of 2^31 elements, which is not made here."""
    entry = delta.Entry("blocks", "BF16", (elements,), elements, 2, 0, None, None, {})
    indices = np.array([0, elements - 1])
    values = np.array([0x3F80, 0x4000], np.uint16)
    patch = types.SimpleNamespace(
        path="p", names=["w"], entry=lambda _: entry, changed=lambda _: (indices, values)
    )
    (made,), dense = patches_of(patch)
    assert dense == []
    assert made.indices.dtype == dtype
    assert made.indices.tolist() == indices.tolist()
    assert made.values.tolist() == [1.0, 2.0]
    check_rules([made])


def test_devices():
    base = {"a": torch.ones(4), "b": torch.ones(4, dtype=torch.int8)}
    patch = delta.diff(base, {name: tensor + 1 for name, tensor in base.items()}, values="set")
    (sparse,), (dense,) = patches_of(patch, base, device="meta")
    assert {each.device.type for each in (sparse.values, sparse.indices, dense.values)} == {"meta"}


def test_the_class_of_a_running_vllm():
    """Its own class, with the fields of the contract; ours has the same fields."""
    base = {"a": torch.ones(4)}
    patch = delta.diff(base, {"a": torch.zeros(4)}, values="set")
    assert type(patches_of(patch)[0][0]) is module.CheckpointWeightPatch
    with EngineStub("vllm", {}) as stub:
        (made,) = patches_of(patch)[0]
        kind = stub.made[module._MODULE].CheckpointWeightPatch
        assert type(made) is kind
        assert list(kind.__annotations__) == list(module.CheckpointWeightPatch._fields)
        check_rules([made])

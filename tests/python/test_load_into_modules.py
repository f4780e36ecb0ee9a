"""load_into(module): values reach the module's own memory, or one error says what to call."""

import warnings

import pytest
import torch
from torch import nn

from safetensors import SafetensorError
from safetensors.torch import load_into, load_model, save_file, save_model
from support import sharded
from support.rank_faults import values


def state_of(module):
    """Returns copies of a module's state."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


class WithExtraState(nn.Linear):
    """Has extra state of another shape before it is loaded, as scales of FP8 have."""

    scales = torch.zeros(0)

    def get_extra_state(self):
        return self.scales

    def set_extra_state(self, state):
        self.scales = state


def test_extra_state_is_set(tmp_path):
    source = nn.Sequential(WithExtraState(2, 2), nn.Linear(2, 2))
    source[0].scales = torch.tensor([1.5, 2.5])
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    target = nn.Sequential(WithExtraState(2, 2), nn.Linear(2, 2))
    assert load_into(target, tmp_path) == ([], [])
    assert target[0].scales.tolist() == [1.5, 2.5]
    sharded.check(target.state_dict(), source.state_dict())


def test_extra_state_that_is_no_tensor_is_missing_from_files(tmp_path):
    module = WithExtraState(2, 2)
    module.scales = {"a": 1}
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(RuntimeError, match='Missing key.*"_extra_state"'):
        load_into(module, tmp_path)
    assert load_into(module, tmp_path, strict=False) == (["_extra_state"], [])


class Copying(nn.Linear):
    """Its `state_dict()` has a transposed copy of the weight."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight.detach().t().contiguous()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, *args)


class Cloning(nn.Linear):
    def state_dict(self, *args, **kwargs):
        return {name: each.clone() for name, each in super().state_dict(*args, **kwargs).items()}


class StateOnlySaved(nn.Linear):
    """Has extra state that it saves and does not load."""

    def get_extra_state(self):
        return torch.ones(3)


def hooked():
    module = nn.Linear(3, 3)

    def cast(module, state, prefix, local_metadata):
        for name in state:
            state[name] = state[name].bfloat16()

    module._register_state_dict_hook(cast)
    return module


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Sequential(Copying(3, 3)), r"0\.weight"),
        (lambda: Cloning(3, 3), "(bias|weight)"),
        (hooked, "(bias|weight)"),
        (lambda: StateOnlySaved(3, 3), "_extra_state"),
    ],
)
def test_copies_are_refused(tmp_path, make, name):
    """The module stays as it is, and the function that the error names loads it."""
    source, target = make(), make()
    save_file(state_of(source), tmp_path / "a.safetensors")
    before = state_of(target)
    text = rf"tensor '{name}'.*has a copy of it.*use load_model"
    with pytest.raises(SafetensorError, match=text):
        load_into(target, tmp_path)
    sharded.check(state_of(target), before)
    load_model(target, tmp_path / "a.safetensors", strict=name != "_extra_state")
    sharded.check(state_of(target), state_of(source))


def test_views_of_parameters_are_loaded(tmp_path):
    """A fused weight that is saved in parts, and one that is saved transposed."""

    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Parameter(torch.zeros(6, 4))
            self.w = nn.Parameter(torch.zeros(2, 3))

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            for name, part in zip("qkv", self.qkv.detach().chunk(3), strict=True):
                destination[prefix + name] = part
            destination[prefix + "w"] = self.w.detach().t()

    tensors = {name: torch.rand(2, 4) for name in "qkv"} | {"w": torch.rand(3, 2)}
    save_file(tensors, tmp_path / "a.safetensors")
    module = Fused()
    assert load_into(module, tmp_path) == ([], [])
    assert torch.equal(module.qkv, torch.cat([tensors[name] for name in "qkv"]))
    assert torch.equal(module.w, tensors["w"].t())


def parametrized():
    module = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus(), unsafe=True)
    return module


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(4, 4))


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def flattened():
    """An LSTM whose parameters are views of one tensor, as on CUDA."""
    module = nn.LSTM(3, 4, num_layers=2)
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    at = 0
    for parameter in module.parameters():
        parameter.data = flat[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    return module


@pytest.mark.parametrize(
    "make",
    [
        parametrized,
        old_weight_norm,
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        lambda: nn.LSTM(3, 4, bidirectional=True),
        flattened,
        lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(4, 4)),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.DataParallel(nn.Linear(4, 4)),
        tied,
    ],
)
def test_modules_of_torch(tmp_path, make):
    torch.manual_seed(1)
    source = make()
    torch.manual_seed(2)
    target = make()
    save_model(source, tmp_path / "a.safetensors")
    assert load_into(target, tmp_path) == ([], [])
    sharded.check(state_of(target), state_of(source))
    held = dict(target.named_parameters()) | dict(target.named_buffers())
    for name, tensor in target.state_dict().items():
        if name in held:
            assert tensor.data_ptr() == held[name].data_ptr()


def test_a_lazy_module_without_shapes(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.LazyLinear(2)
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(SafetensorError, match=r"tensor '(weight|bias)'.*of a lazy module"):
        load_into(module, tmp_path)


# Distributed modules, on two ranks.


def layers():
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


@pytest.fixture
def filename(tmp_path):
    pytest.importorskip("torch.distributed.tensor")
    path = tmp_path / "a.safetensors"
    torch.manual_seed(3)
    save_file(layers().state_dict(), path)
    return path


def full_state(module):
    return {name: tensor.full_tensor() for name, tensor in module.state_dict().items()}


def sums_after(rank, filename):
    """Returns what loading a full state dict of FSDP1 raises, and what load_model loads."""
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        with pytest.raises(SafetensorError) as caught:
            load_into(model, filename)
        load_model(model, filename)
        found = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    return str(caught.value), found


def test_fsdp1_with_a_full_state_dict(filename):
    from safetensors.torch import load_file

    expected = {name: tensor.tolist() for name, tensor in load_file(filename).items()}
    for text, found in values(2, sums_after, filename):
        assert "has a copy of it" in text
        assert "use load_model" in text
        assert found == expected


def fully_sharded(rank, filename):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from safetensors.torch import load_file

    expected = load_file(filename)
    for given in ({}, {"group": dist.group.WORLD}):
        model = layers()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        assert load_into(model, filename, **given) == ([], [])
        found = full_state(model)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert load_into(model.state_dict(), filename, parts={"*": None}) == ([], [])
        with pytest.raises(SafetensorError, match=r"'0\.\w+' .*DTensor.*load_into\(module"):
            load_model(model, filename)
    return True


def test_fully_shard(filename):
    """Seven rows are uneven parts; each rank reads its own."""
    assert values(2, fully_sharded, filename) == [True, True]


def other_placements(rank, filename):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from safetensors import plan
    from safetensors.torch import load_file, plan_placements

    mesh = init_device_mesh("cpu", (2,))
    expected = load_file(filename)["0.weight"]
    for placement in (Shard(0), Shard(1), Replicate()):
        target = {"0.weight": distribute_tensor(torch.zeros(7, 5), mesh, [placement])}
        load_into(target, filename, strict=False)
        assert torch.equal(target["0.weight"].full_tensor(), expected)
    target = {"0.weight": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(-1)])}
    same = plan_placements(mesh, {"0.weight": [Shard(1)]})
    load_into(target, filename, strict=False, parts=same)
    assert torch.equal(target["0.weight"].full_tensor(), expected)
    for rule in (
        plan_placements(mesh, {"0.weight": [Shard(0)]})["0.weight"],
        plan.Shard(1, rank, 2),
    ):
        with pytest.raises(SafetensorError, match=r"'0\.weight'.*its placements are .*Shard"):
            load_into(target, filename, strict=False, parts={"0.weight": rule})
    wide = {"0.weight": distribute_tensor(torch.zeros(8, 5), mesh, [Shard(0)])}
    with pytest.raises(SafetensorError, match=r"of shape \[8, 5\], the file's is \[7, 5\]"):
        load_into(wide, filename, strict=False)
    return True


def test_dtensors(filename):
    """They get the part of their placements, and rules for other parts are refused."""
    assert values(2, other_placements, filename) == [True, True]

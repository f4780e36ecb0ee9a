"""load_model and save_model: parts of a storage, modules without memory, prefixes of wrappers."""

import pytest
import torch
from torch import nn

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_into, load_model, save_file, save_model
from support import sharded


class Parts(nn.Module):
    """Parameters that are parts of one tensor, some by two names; and a part of a buffer."""

    def __init__(self, seed=0):
        super().__init__()
        flat = torch.rand(12, generator=torch.Generator().manual_seed(seed))
        self.q, self.k = nn.Parameter(flat[:3]), nn.Parameter(flat[3:6])
        self.tied = self.k
        matrix = flat[6:].view(2, 3)
        self.register_buffer("left", matrix[:, :1])  # their areas overlap, their elements do not
        self.register_buffer("right", matrix[:, 1:])
        self.register_buffer("none", flat[:0])


def test_parts_of_a_storage(tmp_path):
    path = tmp_path / "a.safetensors"
    source = Parts()
    save_model(source, path)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"tied": "k"}
        assert sorted(file) == ["k", "left", "none", "q", "right"]
    for load in (load_model, load_into):
        target = Parts(seed=1)
        missing, unexpected = load(target, path)
        assert not missing
        assert not unexpected
        sharded.check(target.state_dict(), source.state_dict())
    save_file({"tied": torch.ones(3)}, path)
    assert load_model(target, path, strict=False) == ({"left", "none", "q", "right"}, [])
    assert target.k.tolist() == [1, 1, 1]


class Overlapping(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        flat = torch.zeros(8)
        self.x, self.y = nn.Parameter(flat[:first]), nn.Parameter(flat[second:6])


def test_a_part_within_another(tmp_path):
    """It is left out, and is not missing."""
    path = tmp_path / "a.safetensors"
    save_model(Overlapping(6, 2), path)
    assert sorted(load_file(path)) == ["x"]
    save_file({"x": torch.arange(6.0)}, path)
    target = Overlapping(6, 2)
    assert load_model(target, path) == (set(), [])
    assert target.y.tolist() == [2, 3, 4, 5]


def test_parts_that_overlap(tmp_path):
    """They are not saved. A file that has both is loaded, as by load_state_dict."""
    path = tmp_path / "a.safetensors"
    with pytest.raises(RuntimeError, match="^Error while trying to find names to remove"):
        save_model(Overlapping(4, 2), path)
    expanded = nn.Module()
    expanded.register_buffer("a", torch.zeros(1).expand(5))
    with pytest.raises(RuntimeError, match="^Error while trying to find names to remove"):
        save_model(expanded, path)
    save_file({"x": torch.ones(4), "y": torch.ones(4)}, path)
    target = Overlapping(4, 2)
    assert load_model(target, path) == (set(), [])
    assert target.x.tolist() == target.y.tolist() == [1, 1, 1, 1]
    save_file({"x": torch.ones(4)}, path)
    with pytest.raises(RuntimeError, match='Missing key.*"y"'):
        load_model(target, path)


@pytest.mark.filterwarnings("ignore:.*is a no-op")
def test_a_module_on_meta(tmp_path):
    """The error is load_into's; with device="meta", no values are wanted."""
    path = tmp_path / "a.safetensors"
    save_model(nn.Linear(3, 2), path)
    with torch.device("meta"):
        module = nn.Linear(3, 2)
    text = r"tensor '\w+' into .* on meta.*`to_empty\(\)` of the module allocates it"
    for load in (load_model, load_into):
        with pytest.raises(SafetensorError, match=text):
            load(module, path)
        with pytest.raises(SafetensorError, match=text):
            load(module, path, strict=False)
    assert load_model(module, path, device="meta") == (set(), [])
    module.to_empty(device="cpu")
    assert load_model(module, path) == (set(), [])


def test_extra_state_that_is_no_tensor(tmp_path):
    class Module(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            raise AssertionError

    path = tmp_path / "a.safetensors"
    save_file(nn.Linear(3, 2).state_dict(), path)
    assert load_model(Module(3, 2), path, strict=False) == ({"_extra_state"}, [])


def compiled(module):
    """Returns a module with the names that torch.compile gives, without compiling it."""
    return torch.compile(module, backend="eager")


def regions():
    """Compiled in parts, within a wrapper."""
    return nn.DataParallel(nn.Sequential(compiled(nn.Linear(3, 2)), nn.Linear(2, 2)))


def plain():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("load", [load_model, load_into])
@pytest.mark.parametrize(
    ("saved", "loaded", "texts"),
    [
        (
            lambda: compiled(plain()),
            plain,
            ["in the file have the prefix `_orig_mod.` of torch.comp"],
        ),
        (
            plain,
            lambda: compiled(plain()),
            ["in the module have the prefix `_orig_mod.` of torch.co"],
        ),
        (
            lambda: nn.DataParallel(plain()),
            plain,
            ["in the file have the prefix `module.` of Distri"],
        ),
        (
            regions,
            plain,
            ["in the file have the prefix `_orig_mod.`", "file have the prefix `module"],
        ),
        (
            lambda: compiled(plain()),
            lambda: nn.DataParallel(plain()),
            ["in the file have the prefix `_orig_mod.`", "in the module have the prefix `module.`"],
        ),
    ],
)
def test_prefixes_of_wrappers(tmp_path, load, saved, loaded, texts):
    """The error names them, and strip_prefixes ignores them."""
    path = tmp_path / "a.safetensors"
    source, target = saved(), loaded()
    save_model(source, path)
    with pytest.raises(RuntimeError) as caught:
        load(target, path)
    for text in texts:
        assert text in str(caught.value)
    assert "strip_prefixes=True" in str(caught.value)
    missing, unexpected = load(target, path, strip_prefixes=True)
    assert not missing
    assert not unexpected
    values = zip(target.state_dict().values(), source.state_dict().values(), strict=True)
    assert all(torch.equal(here, there) for here, there in values)


@pytest.mark.parametrize("load", [load_model, load_into])
def test_other_names_with_prefixes(tmp_path, load):
    """Names that no wrapper explains get no hint, equal names come first, and two for one name
    are an error."""
    path = tmp_path / "a.safetensors"
    save_file({"weight": torch.ones(2, 3), "b": torch.ones(2)}, path)
    with pytest.raises(RuntimeError) as caught:
        load(nn.Linear(3, 2), path)
    assert str(caught.value).endswith('Unexpected key(s) in state_dict: "b"')
    both = {"weight": torch.ones(2, 3), "module.weight": torch.zeros(2, 3), "bias": torch.ones(2)}
    save_file(both, path)
    target = nn.Linear(3, 2)
    missing, unexpected = load(target, path, strict=False, strip_prefixes=True)
    assert (list(missing), unexpected) == ([], ["module.weight"])
    assert target.weight.detach().eq(1).all()
    save_file({"_orig_mod.bias": torch.ones(2), "module.bias": torch.ones(2)}, path)
    text = r"'_orig_mod\.bias' and 'module\.bias' of the files are the same name"
    with pytest.raises(SafetensorError, match=text):
        load(target, path, strict=False, strip_prefixes=True)

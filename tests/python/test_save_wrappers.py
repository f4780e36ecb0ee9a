"""Tensors whose memory does not hold their elements are refused by name, never saved wrongly."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parameter import UninitializedParameter  # noqa: E402

import safetensors  # noqa: E402
from safetensors import SafetensorError  # noqa: E402
from safetensors import torch as st  # noqa: E402


class Quantized(torch.Tensor):
    """A weight as torchao's: the class computes, other tensors hold the values."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    def __repr__(self):
        return "Quantized"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(function)


class Torchao(Quantized):
    """The same, by the name of its module from torchao."""

    __module__ = "torchao.quantization.fake"


class Logged(torch.Tensor):
    """A subclass with memory of its own, whose operators do more."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


class Image(torch.Tensor):
    """A subclass of another name only, as torchvision's and fastai's."""


def quantized(cls=Quantized):
    return cls(torch.ones(4, dtype=torch.int8), torch.ones(1))


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


def masked():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # masked tensors are a prototype
        return torch.masked.masked_tensor(torch.ones(4), torch.tensor([True, False] * 2))


def nested(**layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(4), torch.ones(2)], **layout)


def emptied():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def transformed(transform):
    """Returns a tensor as a function sees it that is transformed."""
    seen = []

    def function(x):
        seen.append(x)
        return x.sum()

    transform(function)(torch.ones(2, 4) if transform is torch.func.vmap else torch.ones(4))
    return seen[0]


WRAPPERS = {
    "quantized": (quantized, RuntimeError, "(`.codes`, `.scale`)"),
    "parameter": (
        lambda: torch.nn.Parameter(quantized(), requires_grad=False), RuntimeError, "`.codes`",
    ),
    "torchao": (lambda: quantized(Torchao), RuntimeError, "`flatten_tensor_state_dict`"),
    "logged": (
        lambda: torch.Tensor._make_subclass(Logged, torch.ones(4)), RuntimeError, "plain tensors",
    ),
    "fake": (fake, RuntimeError, "FakeTensorMode"),
    "masked": (masked, RuntimeError, "`.get_mask()`"),
    "nested": (nested, RuntimeError, "`.unbind()`"),
    "jagged": (lambda: nested(layout=torch.jagged), ValueError, "`.offsets()`"),
    "lazy": (UninitializedParameter, ValueError, "Run the module once"),
    "functional": (
        lambda: torch._to_functional_tensor(torch.ones(4)), RuntimeError, "torch.func",
    ),
    "emptied": (emptied, RuntimeError, "without memory"),
}  # fmt: skip
PLAIN = {
    "parameter": lambda: torch.nn.Parameter(torch.arange(4.0)),
    "image": lambda: torch.arange(4.0).as_subclass(Image),
    "parameter of an image": lambda: torch.nn.Parameter(torch.arange(4.0).as_subclass(Image)),
    "inference": lambda: torch.inference_mode()(torch.arange)(4.0),
    "negated": lambda: torch._neg_view(-torch.arange(4.0)),
}


class Holder(torch.nn.Module):
    """A module with one more tensor than it should have."""

    def __init__(self, tensor):
        super().__init__()
        self.fine = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("odd", torch.ones(4))
        self._odd = (tensor,)  # in a tuple, so that it is not registered

    def state_dict(self, *args, **kwargs):
        return {**super().state_dict(*args, **kwargs), "odd": self._odd[0]}


def _write(path, tensor, specs):
    with safetensors.safe_create(path, specs) as writer:
        writer.write("fine", torch.ones(2))
        writer.write("odd", tensor)


SPECS = {"fine": ("F32", (2,)), "odd": ("F32", (4,))}
SAVES = {
    "save": lambda path, tensors: st.save(tensors),
    "save_file": lambda path, tensors: st.save_file(tensors, path),
    "save_files": lambda path, tensors: st.save_files(tensors, path),
    "save_file_async": lambda path, tensors: st.save_file_async(tensors, path).result(),
    "save_model": lambda path, tensors: st.save_model(Holder(tensors["odd"]), path),
    "safe_create": lambda path, tensors: _write(path, tensors["odd"], SPECS),
    "safe_create without specs": lambda path, tensors: _write(path, tensors["odd"], None),
}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_are_refused_by_name(tmp_path, kind, save):
    make, error, advice = WRAPPERS[kind]
    tensors = {"fine": torch.ones(2), "odd": make()}
    path = tmp_path / "out"
    with pytest.raises(SafetensorError) as caught:
        SAVES[save](path, tensors)
    assert isinstance(caught.value, error)
    assert "`odd` is " in str(caught.value)
    assert advice in str(caught.value)
    assert caught.value.subject == "odd"
    assert caught.value.code == "invalid_argument"
    assert not path.exists() or list(path.iterdir()) == []


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_update_file_refuses_them(tmp_path, kind, in_place):
    path = tmp_path / "a.safetensors"
    st.save_file({"odd": torch.zeros(4)}, path)
    before = path.read_bytes()
    with pytest.raises(SafetensorError, match="`odd` is ") as caught:
        safetensors.update_file(
            path, {"odd": WRAPPERS[kind][0]()}, in_place=in_place, shared=in_place
        )
    assert isinstance(caught.value, WRAPPERS[kind][1])
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", WRAPPERS)
def test_load_into_refuses_them(tmp_path, kind):
    """Nothing is written to the other targets, either."""
    path = tmp_path / "a.safetensors"
    st.save_file({"fine": torch.zeros(2), "odd": torch.zeros(4)}, path)
    targets = {"fine": torch.ones(2), "odd": WRAPPERS[kind][0]()}
    with pytest.raises(
        SafetensorError, match="Cannot load tensor 'odd' into the one given: it is "
    ):
        st.load_into(targets, path)
    assert targets["fine"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_inside_a_transform(transform):
    """There, even the type is torch.Tensor."""

    def function(x):
        with pytest.raises(SafetensorError, match=r"`odd` is inside a transform of torch.func"):
            st.save({"odd": x})
        return x.sum()

    transform(function)(torch.ones(2, 4) if transform is torch.func.vmap else torch.ones(4))


@pytest.mark.parametrize("save", ["save_file", "save_file_async", "safe_create"])
@pytest.mark.parametrize("kind", PLAIN)
def test_other_subclasses_are_saved(tmp_path, kind, save):
    path = tmp_path / "a.safetensors"
    SAVES[save](path, {"fine": torch.ones(2), "odd": PLAIN[kind]()})
    assert st.load_file(path)["odd"].tolist() == [0.0, 1.0, 2.0, 3.0]
    targets = {"fine": torch.zeros(2), "odd": torch.zeros(4).as_subclass(Image)}
    st.load_into(targets, path)
    assert targets["odd"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_upstream_reads_the_same(upstream):
    """Upstream's classes of errors, or what it saves although nothing says that it is right."""
    for source, kind in {
        "torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])": "builtins.RuntimeError",
        "torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)":
            "builtins.ValueError",
        "torch.nn.UninitializedParameter()": "builtins.ValueError",
        "torch._to_functional_tensor(torch.ones(2))": "builtins.RuntimeError",
    }.items():  # fmt: skip
        assert upstream.evaluate(f"st.save({{'a': {source}}})").failure.kind == kind


def test_specs_of_a_quantized_model():
    """The shape and dtype of the values, which may be written as plain tensors."""
    specs = safetensors.specs_of({"a": quantized(), "b": fake(), "c": quantized()})
    assert {tuple(spec) for spec in specs.values()} == {("F32", (4,))}
    for kind in ("nested", "jagged", "lazy"):
        with pytest.raises(SafetensorError, match="`odd` is "):
            safetensors.specs_of({"odd": WRAPPERS[kind][0]()})


def test_torchao_itself():
    quantization = pytest.importorskip("torchao.quantization")
    model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with pytest.raises(SafetensorError, match="`weight` is quantized by torchao"):
        st.save_model(model, "never-made")

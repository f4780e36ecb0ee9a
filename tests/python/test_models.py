"""Whole models, and the private helpers that other projects call."""

import re
from collections import defaultdict

import numpy as np
import pytest
import torch

import safetensors.torch as st
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open

nn = torch.nn


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(3, 4)
        self.b.weight = self.a.weight
        self.register_buffer("seen", torch.tensor(5))
        self.register_buffer("cache", torch.zeros(2), persistent=False)


def filled(cls=Tied, seed=0):
    """Returns a model whose values a seed determines."""
    torch.manual_seed(seed)
    return cls()


def assert_same_state(first, second):
    """Checks that names, values and dtypes of both are the same."""
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


@pytest.fixture
def path(tmp_path):
    """The path for a model."""
    return str(tmp_path / "model.safetensors")


@pytest.fixture
def saved(path):
    """A saved Tied model: (path, model)."""
    model = filled()
    assert st.save_model(model, path) is None
    return path, model


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_model_with_tied_weights_comes_back(saved, backend):
    path, model = saved
    other = filled(seed=1)
    assert st.load_model(other, path, backend=backend) == (set(), [])
    assert_same_state(model, other)
    assert other.a.weight is other.b.weight
    with torch.no_grad():
        other.a.weight.fill_(9)
    again = filled(seed=2)
    st.load_model(again, path)
    assert_same_state(model, again)


def test_removed_names_are_in_the_metadata(saved, path):
    with safe_open(path, "pt") as file:
        assert file.keys() == ["a.bias", "a.weight", "b.bias", "seen"]
        assert file.metadata() == {"b.weight": "a.weight"}
    own = {"x": "y"}
    st.save_model(saved[1], path, own)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"x": "y", "b.weight": "a.weight"}


def test_missing_and_unexpected_names(saved):
    path, _ = saved
    tensors = st.load_file(path)
    bias = tensors.pop("a.bias")
    tensors["extra"] = torch.zeros(1)
    st.save_file(tensors, path)
    text = (
        'Error(s) in loading state_dict for Tied:\n    Missing key(s) in state_dict: "a.bias"'
        '\n    Unexpected key(s) in state_dict: "extra"'
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}"):
        st.load_model(filled(), path)
    model = filled(seed=3)
    before = model.a.bias.clone()
    assert st.load_model(model, path, strict=False) == ({"a.bias"}, ["extra"])
    assert torch.equal(model.a.bias, before)
    assert not torch.equal(bias, before)
    assert torch.equal(model.b.bias, tensors["b.bias"])


def test_metadata_of_the_caller_is_kept(saved, path):
    """It is kept even if its key is the name of a tensor that is left out."""
    st.save_model(saved[1], path, {"b.weight": "the caller's"})
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"b.weight": "the caller's"}


@pytest.mark.parametrize("strict", [True, False])
def test_wrong_shape_is_an_error_either_way(saved, strict):
    path, _ = saved
    tensors = st.load_file(path)
    tensors["a.bias"] = torch.zeros(7)
    st.save_file(tensors, path)
    text = (
        "Error(s) in loading state_dict for Tied:\n\tsize mismatch for a.bias: copying a param with"
        " shape torch.Size([7]) from checkpoint, the shape in current model is torch.Size([4])."
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}"):
        st.load_model(filled(), path, strict=strict)


def test_a_file_with_both_tied_names_is_taken(path):
    model = filled()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    st.save_file(state, path)
    other = filled(seed=1)
    missing, unexpected = st.load_model(other, path, strict=False)
    assert not missing
    assert set(unexpected) <= {"b.weight"}
    assert_same_state(model, other)


@pytest.mark.parametrize(("file", "model"), [("float32", "float16"), ("bfloat16", "float32")])
def test_values_become_the_dtype_of_the_model(path, file, model):
    source = filled().to(getattr(torch, file))
    st.save_model(source, path)
    target = filled(seed=1).to(getattr(torch, model))
    assert st.load_model(target, path) == (set(), [])
    for name, value in target.state_dict().items():
        want = source.state_dict()[name]
        assert value.dtype == (getattr(torch, model) if want.is_floating_point() else torch.int64)
        assert torch.equal(value, want.to(value.dtype))


def test_state_dict_hooks_run_when_saving(path):
    model = filled()

    def rename(module, state, prefix, local_metadata):
        state["renamed"] = state.pop("a.bias")

    model._register_state_dict_hook(rename)
    st.save_model(model, path)
    loaded = st.load_file(path)
    assert sorted(loaded) == ["a.weight", "b.bias", "renamed", "seen"]
    assert torch.equal(loaded["renamed"], model.a.bias)


def test_load_hooks_run_when_loading(saved):
    path, model = saved
    tensors = st.load_file(path)
    tensors["old name"] = tensors.pop("a.bias")
    st.save_file(tensors, path)
    calls = []

    def rename(state, prefix, local_metadata, strict, missing, unexpected, errors):
        calls.append("before")
        if "old name" in state:
            state["a.bias"] = state.pop("old name") * 2

    other = filled(seed=1)
    other._register_load_state_dict_pre_hook(rename)
    other.register_load_state_dict_post_hook(lambda module, keys: calls.append("after"))
    assert st.load_model(other, path, strict=False) == (set(), [])
    assert calls == ["before", "after"]
    assert torch.equal(other.a.bias, model.a.bias * 2)


def test_device_is_passed_on(saved):
    path, model = saved
    for device in ("cpu", torch.device("cpu")):
        other = filled(seed=1)
        st.load_model(other, path, device=device)
        assert_same_state(model, other)
    with pytest.raises((SafetensorError, RuntimeError)):
        st.load_model(filled(), path, device="no such device")


def test_views_of_one_storage(path):
    class Transposed(nn.Module):
        """A weight and its transpose, of equal length."""

        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.arange(12.0).reshape(3, 4))
            self.register_buffer("copy", torch.arange(12.0).reshape(3, 4).t())

    st.save_model(Transposed(), path)
    assert torch.equal(st.load_file(path)["copy"], torch.arange(12.0).reshape(3, 4).t())
    with pytest.raises(ValueError, match="non contiguous"):
        st.save_model(Transposed(), path, force_contiguous=False)

    class Halves(nn.Module):
        """Two tensors in one storage, neither of them all of it."""

        def __init__(self):
            super().__init__()
            whole = torch.zeros(10)
            self.register_buffer("x", whole[:6])
            self.register_buffer("y", whole[5:])

    with pytest.raises(RuntimeError, match=r"^Error while trying to find names to remove"):
        st.save_model(Halves(), path)


def test_no_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        st.load_model(filled(), tmp_path / "none")


# The private helpers.

T = torch.arange(10.0)


def test_find_shared_tensors():
    found = st._find_shared_tensors({"a": T, "b": T, "c": T[2:3], "d": torch.zeros(1)})
    assert sorted(map(sorted, found)) == [["a", "b", "c"], ["d"]]
    assert all(isinstance(group, set) for group in found)
    apart = st._find_shared_tensors({"a": T[:5], "b": T[5:], "meta": torch.zeros(2, device="meta")})
    assert sorted(map(sorted, apart))[:2] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("tensors", "words", "removed"),
    [
        ({"a": T, "b": T, "c": T[2:3], "d": torch.zeros(1)}, {}, {"a": ["b", "c"]}),
        ({"a": T, "b": T}, {"preferred_names": ["b"]}, {"b": ["a"]}),
        ({"a": T, "b": T}, {"discard_names": ["a"]}, {"b": ["a"]}),
        (
            {"a": T, "b": T, "e": T},
            {"preferred_names": ["e", "b"], "discard_names": ["e"]},
            {"b": ["a", "e"]},
        ),
        ({"a": T[2:3], "whole": T}, {}, {"whole": ["a"]}),
        ({"a": T, "b": torch.zeros(1)}, {}, {}),
    ],
)
def test_remove_duplicate_names(tensors, words, removed):
    found = st._remove_duplicate_names(tensors, **words)
    assert isinstance(found, defaultdict)
    assert found == removed


def test_remove_duplicate_names_keeps_no_part():
    with pytest.raises(RuntimeError, match="None is covering the entire storage"):
        st._remove_duplicate_names({"a": T[:5], "b": T[:5]})


def test_storage_of_a_tensor():
    assert st._is_complete(T)
    assert not st._is_complete(T[1:])
    assert not st._is_complete(T[:5])
    assert st.storage_ptr(T) == st.storage_ptr(T[3:]) == T.data_ptr()
    assert st.storage_size(T) == st.storage_size(T[:2]) == 40
    assert st._end_ptr(T) == T.data_ptr() + 40
    assert st._end_ptr(T[:2]) == T.data_ptr() + 8
    empty = torch.zeros(0)
    assert st._end_ptr(empty) == empty.data_ptr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "complex64", "bool"])
def test_to_ndarray_gives_the_bytes(dtype):
    tensor = (T > 3) if dtype == "bool" else T.to(getattr(torch, dtype))
    array, kept = st._to_ndarray(tensor)
    assert array.dtype == np.uint8
    assert array.shape == (10 * tensor.element_size(),)
    assert array.tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()
    assert torch.equal(kept.view(torch.uint8), tensor.view(torch.uint8))


def test_flatten_as_ptr_keeps_alive_what_it_points_to():
    kept = []
    specs = st._flatten_as_ptr({"a": T}, kept)
    assert list(specs) == ["a"]
    assert isinstance(specs["a"], TensorSpec)
    assert (specs["a"].dtype, specs["a"].shape, specs["a"].data_len) == ("F32", [10], 40)
    assert specs["a"].data_ptr == T.data_ptr()
    assert kept


def test_evaluate_tensors_for_save():
    assert st._evaluate_tensors_for_save({"a": T}) is None
    with pytest.raises(ValueError, match="Expected a dict of"):
        st._evaluate_tensors_for_save([T])
    with pytest.raises(RuntimeError, match="Some tensors share memory"):
        st._evaluate_tensors_for_save({"a": T, "b": T})


def test_view2torch_and_getdtype():
    found = st._view2torch(deserialize(st.save({"a": T, "e": torch.zeros(0, 2)})))
    assert torch.equal(found["a"], T)
    assert tuple(found["e"].shape) == (0, 2)
    assert st._getdtype("F32") is torch.float32
    with pytest.raises(KeyError):
        st._getdtype("no such dtype")


def test_dtypes_added_to_types_are_seen_by_load(monkeypatch):
    data = st.save({"a": torch.tensor([1, 256], dtype=torch.int16)})
    monkeypatch.setitem(st._TYPES, "I16", torch.float16)
    assert st.load(data)["a"].dtype == torch.float16
    assert st._getdtype("I16") is torch.float16
    assert st.load(data)["a"].view(torch.int16).tolist() == [1, 256]


# The state of torch around us.


@pytest.fixture
def small(tmp_path):
    """A file and its bytes."""
    st.save_file({"a": T, "i": torch.tensor([3])}, tmp_path / "small")
    return tmp_path / "small", (tmp_path / "small").read_bytes()


def every_way(small, backend):
    """Returns the tensors of the file by every way of loading."""
    path, data = small
    with safe_open(path, "pt", backend=backend) as file:
        yield {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    yield st.load_file(path, backend=backend)
    yield st.load(data)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("state", ["default device", "device context", "default dtype"])
def test_defaults_of_torch_change_nothing(small, backend, state):
    dtype = torch.get_default_dtype()
    try:
        if state == "default device":
            torch.set_default_device("meta")
        elif state == "default dtype":
            torch.set_default_dtype(torch.float64)
        if state == "device context":
            with torch.device("meta"):
                found = list(every_way(small, backend))
        else:
            found = list(every_way(small, backend))
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
    assert len(found) == 3
    for tensors in found:
        assert tensors["a"].device.type == tensors["i"].device.type == "cpu"
        assert tensors["a"].dtype == torch.float32
        assert tensors["a"].tolist() == T.tolist()
        assert tensors["i"].tolist() == [3]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_inference_mode_is_respected(small, backend):
    with torch.inference_mode():
        found = list(every_way(small, backend))
    for tensors in found:
        assert tensors["a"].is_inference()
        assert tensors["a"].tolist() == T.tolist()
    for tensors in every_way(small, backend):
        assert not tensors["a"].is_inference()

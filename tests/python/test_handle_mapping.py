"""Handles as mappings; properties and repr of handles and slices."""

import os

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, _core, _safetensors_rust, safe_open
from safetensors.numpy import save_file


@pytest.fixture
def path(tmp_path):
    """A file of two tensors; the second by name comes first."""
    arrays = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.arange(4, dtype="u8")}
    save_file(arrays, tmp_path / "model.safetensors")
    return os.fspath(tmp_path / "model.safetensors")


def test_repr_of_a_handle(path):
    """It shows path, framework and count, and whether it is closed."""
    f = safe_open(path, "np")
    assert repr(f) == f"<safe_open path={path!r} framework='numpy' tensors=2>"
    f.close()
    f.close()
    assert repr(f) == f"<safe_open path={path!r} closed>"
    with open(path, "rb") as file, safetensors._safe_open_handle(file, "np") as f:
        assert repr(f) == f"<_safe_open_handle path={path!r} framework='numpy' tensors=2>"


def test_repr_of_a_path_that_is_no_utf8(path, tmp_path):
    """It is decoded like os.fsdecode."""
    odd = os.fsencode(tmp_path) + b"/\xff'.safetensors"
    os.rename(path, odd)
    assert repr(os.fsdecode(odd)) in repr(safe_open(odd, "np"))


def test_items_of_a_handle(path):
    """items() has the order of keys() and creates each tensor on access."""
    with safe_open(path, "np") as f:
        assert f["a"].tolist() == f.get_tensor("a").tolist()
        assert [(name, value.tolist()) for name, value in f.items()] == [
            ("a", [[0, 1, 2], [3, 4, 5]]), ("b", [0, 1, 2, 3]),
        ]  # fmt: skip
        assert [value.shape for value in f.values()] == [(2, 3), (4,)]
        assert dict(f).keys() == {"a", "b"}
        assert type(f.keys()) is list
        items = f.items()
        assert next(items)[0] == "a"
    with pytest.raises(SafetensorError, match="File is closed"):
        next(items)
    for call in (f.items, f.values, lambda: f["a"]):
        with pytest.raises(SafetensorError, match="File is closed"):
            call()


def test_a_missing_item_is_a_key_error(path):
    """With the text of get_tensor, which raises SafetensorError only."""
    with safe_open(path, "np") as f:
        with pytest.raises(KeyError) as item:
            f["c"]
        with pytest.raises(SafetensorError) as tensor:
            f.get_tensor("c")
        assert str(item.value) == str(tensor.value)
        assert isinstance(item.value, SafetensorError)
        assert not isinstance(tensor.value, KeyError)
        assert type(item.value) is safetensors.SafetensorKeyError
        with pytest.raises(TypeError, match="argument 'name'"):
            f[0]


def test_shape_and_dtype_of_a_slice(path):
    """They are also read-only properties, equal to the methods' results."""
    part = safe_open(path, "np").get_slice("a")
    assert part.shape == part.get_shape() == [2, 3]
    assert part.dtype == part.get_dtype() == "F32"
    assert part.shape is not part.shape
    assert repr(part) == "<PySafeSlice name='a' dtype='F32' shape=[2, 3]>"
    for name in ("shape", "dtype"):
        with pytest.raises(AttributeError):
            setattr(part, name, 1)


def test_dtype_names(tmp_path):
    """The names are right for types whose strings are shared."""
    for name, dtype in (("U8", "u1"), ("I64", "i8"), ("F16", "f2"), ("C64", "c8"), ("BOOL", "?")):
        save_file({"a": np.zeros(1, dtype)}, tmp_path / name)
        with safe_open(tmp_path / name, "np") as f:
            assert f.get_slice("a").dtype == f.get_tensor_meta("a").dtype == name


def test_classes_do_not_list_names_of_pybind11():
    """dir() has no names of pybind11."""
    from safetensors import _weights

    classes = [getattr(_core, name) for name in _safetensors_rust.__all__]
    classes += [_core._safe_open_handle, _weights.Model, _weights.Buffer]
    classes = [cls for cls in classes if isinstance(cls, type)]
    assert len(classes) >= 9
    assert [cls for cls in classes if any("pybind11" in name for name in dir(cls))] == []


def test_the_iterator_of_a_prefetch_loader(path):
    """Its class is that of upstream 0.9."""
    pytest.importorskip("torch")
    with safe_open(path, "pt") as f, f.prefetch() as loader:
        assert type(loader) is _safetensors_rust.PrefetchLoader
        stream = iter(loader)
        assert type(stream) is _safetensors_rust.TensorStream
        assert iter(stream) is stream
        assert sorted(name for name, _ in stream) == ["a", "b"]
        with pytest.raises(StopIteration):
            next(stream)

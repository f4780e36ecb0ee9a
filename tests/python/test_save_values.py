"""Saved values are those of the array or tensor, not its raw memory."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import SafetensorError

BASE = np.arange(24, dtype="f8").reshape(2, 3, 4)


class Sub(np.ndarray):
    """An ndarray whose own tobytes must not be called."""

    def tobytes(self, order="C"):
        raise AssertionError("an array's own tobytes is not asked")


def read_only(array):
    """Returns the array as read-only."""
    array = array.copy()
    array.flags.writeable = False
    return array


ARRAYS = {
    "plain": BASE,
    "transposed": BASE.T,
    "one axis swapped": BASE.swapaxes(0, 1),
    "fortran": np.asfortranarray(BASE),
    "strided": BASE[:, ::2, 1::2],
    "reversed": BASE[::-1],
    "reversed inside": BASE[..., ::-1],
    "row of a larger one": BASE[1],
    "column": BASE[:, 1, 2],
    "broadcast": np.broadcast_to(np.arange(4, dtype="i2"), (3, 4)),
    "broadcast scalar": np.broadcast_to(np.float32(7), (2, 5)),
    "big endian f8": BASE.astype(">f8"),
    "big endian i2": BASE.astype(">i2"),
    "big endian u4 transposed": BASE.astype(">u4").T,
    "big endian c8": (BASE + 1j).astype(">c8"),
    "big endian f2 0-d": np.array(1.5, ">f2"),
    "read-only": read_only(BASE),
    "read-only transposed": read_only(BASE).T,
    "0-d": np.array(3.25),
    "0-d bool": np.array(True),
    "empty": np.zeros((0, 3), "f4"),
    "empty inside": np.zeros((2, 0, 3), "i8")[::-1],
    "one element strided": BASE[:1, :1, ::4],
    "window": np.lib.stride_tricks.sliding_window_view(np.arange(6, dtype="i4"), 3),
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), "u1")[1:].view("f8"),
    "subclass": BASE.view(Sub),
    "subclass transposed": BASE.T.view(Sub),
    "masked nowhere": np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [0, 0]]).T,
    "record field": np.array([(1, 2.5), (3, 4.5)], "i4,f8")["f1"],
    "scalar f4": np.float32(2.5),
    "scalar i8": np.int64(-3),
    "scalar bool": np.bool_(True),
}


def expected(array):
    """Returns the values, native and contiguous; ascontiguousarray would add a dimension to 0-d."""
    array = np.asarray(array)
    return np.array(array, array.dtype.newbyteorder("="), order="C", copy=True)


def assert_same(found, array):
    """Checks for the same values, shape and native dtype."""
    want = expected(array)
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_saves_values(name):
    loaded = for_numpy.load(for_numpy.save({"a": ARRAYS[name], "z": np.arange(3)}))
    assert_same(loaded["a"], ARRAYS[name])
    assert loaded["z"].tolist() == [0, 1, 2]


def test_numpy_saves_values_to_a_file_too(tmp_path):
    for_numpy.save_file(ARRAYS, tmp_path / "all.safetensors")
    assert (tmp_path / "all.safetensors").read_bytes() == for_numpy.save(ARRAYS)


def test_bytes_are_those_of_the_contiguous_native_array():
    assert for_numpy.save(ARRAYS) == for_numpy.save({k: expected(v) for k, v in ARRAYS.items()})


def test_saving_changes_no_array():
    arrays = {name: array.copy() for name, array in ARRAYS.items()}
    before = {name: (array.dtype, np.array(array, copy=True)) for name, array in arrays.items()}
    for_numpy.save(arrays)
    for name, (dtype, values) in before.items():
        assert arrays[name].dtype == dtype
        np.testing.assert_array_equal(np.asarray(arrays[name]), values)


def test_memmap_saves_its_window(tmp_path):
    (tmp_path / "raw").write_bytes(BASE.tobytes())
    window = np.memmap(tmp_path / "raw", "f8", "r", offset=8, shape=(23,))[::2]
    assert_same(for_numpy.load(for_numpy.save({"a": window}))["a"], BASE.ravel()[1::2])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_save_values(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = BASE[0].astype(getattr(ml_dtypes, name)).T
    found = for_numpy.load(for_numpy.save({"a": array}))["a"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype("f4"), array.astype("f4"))


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        (5, AttributeError, "'int' object has no attribute 'items'"),
        ({"a\ud800": BASE}, UnicodeEncodeError, "'utf-8' codec can't encode character"),
        ({"__metadata__": BASE}, SafetensorError, ""),
    ],
    ids=["not a dict", "lone surrogate", "__metadata__"],
)
def test_numpy_refuses(tmp_path, tensors, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        for_numpy.save(tensors)
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        for_numpy.save_file(tensors, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# Torch.


class TensorSub(torch.Tensor):
    """A tensor subclass that changes nothing."""


def inference_tensor():
    """Returns a tensor made in inference mode."""
    with torch.inference_mode():
        return torch.arange(3.0)


Z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
T = torch.arange(6.0)
TENSORS = {
    "plain": T,
    "view": T[2:4],
    "conjugate": Z.conj(),
    "negative": torch._neg_view(T),
    "conjugate and negative": torch._neg_view(Z.conj()),
    "conjugate 0-d": Z[0].conj(),
    "imaginary part of a conjugate": Z[:1].conj().imag,
    "leaf": torch.ones(2, requires_grad=True),
    "not a leaf": torch.ones(2, requires_grad=True) * 3,
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "buffer subclass": torch.arange(3.0).as_subclass(TensorSub),
    "inference": inference_tensor(),
    "0-d": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "one column transposed": torch.arange(3.0).reshape(3, 1).t(),
    "shared memory": torch.arange(4.0).share_memory_(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_torch_saves_values(tmp_path, name):
    data = for_torch.save({"a": TENSORS[name]})
    for_torch.save_file({"a": TENSORS[name]}, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == data
    found = for_torch.load(data)["a"]
    want = TENSORS[name].detach().resolve_conj().resolve_neg().clone()
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert found.dtype == want.dtype
    assert torch.equal(found, want)


def test_resolving_a_view_leaves_it_as_it_was():
    conjugate, negative = Z.conj(), torch._neg_view(T)
    for_torch.save({"a": conjugate, "b": negative})
    assert conjugate.is_conj()
    assert negative.is_neg()
    assert torch.equal(negative, -T)


NOT_CONTIGUOUS = (
    "You are trying to save a non contiguous tensor: `a` which is not allowed. It either means you"
    " are trying to save tensors which are reference of each other in which case it's recommended"
    " to save only the full tensors, and reslice at load time, or simply call `.contiguous()` on"
    " your tensor to pack it before saving."
)
SPARSE = (
    "You are trying to save a sparse tensors: `['a']` which this library does not support. You can"
    " make it a dense tensor before saving with `.to_dense()` but be aware this might make a much"
    " larger file than needed."
)
SHARED = (
    "\n            Some tensors share memory, this will lead to duplicate memory on disk and"
    " potential differences when loading them again: [{"
)
OF_INT = "Key `a` is invalid, expected torch.Tensor but received <class 'int'>"
OF_ARRAY = "Key `a` is invalid, expected torch.Tensor but received <class 'numpy.ndarray'>"
DICT = "Expected a dict of [str, torch.Tensor] but received <class '"

REFUSED = {
    "transposed": ({"a": torch.zeros(3, 4).t()}, ValueError, NOT_CONTIGUOUS),
    "strided": ({"a": T[::2]}, ValueError, NOT_CONTIGUOUS),
    "expanded": ({"a": torch.zeros(1).expand(3)}, ValueError, NOT_CONTIGUOUS),
    "conjugate strided": ({"a": Z.repeat(3)[::2].conj()}, ValueError, NOT_CONTIGUOUS),
    "sparse": ({"a": torch.eye(3).to_sparse()}, ValueError, SPARSE),
    "one of two sparse": ({"b": T, "a": torch.eye(3).to_sparse()}, ValueError, SPARSE),
    "same": ({"a": T, "b": T}, RuntimeError, SHARED),
    "view of another": ({"a": T, "b": T[2:4]}, RuntimeError, SHARED),
    "conjugate of another": ({"a": Z, "b": Z.conj()}, RuntimeError, SHARED),
    "int": ({"a": 5}, ValueError, OF_INT),
    "array": ({"a": np.zeros(2)}, ValueError, OF_ARRAY),
    "list": ([T], ValueError, DICT + "list'>"),
    "none": (None, ValueError, DICT + "NoneType'>"),
    "int key": (
        {1: T},
        TypeError,
        "argument 'tensor_dict': 'int' object is not an instance of 'str'",
    ),
    "lone surrogate": ({"a\ud800": T}, UnicodeEncodeError, "'utf-8' codec can't encode character"),
    "complex128": ({"a": torch.zeros(2, dtype=torch.complex128)}, KeyError, "torch.complex128"),
    "bits8": ({"a": torch.empty(2, dtype=torch.bits8)}, KeyError, "torch.bits8"),
    "__metadata__": ({"__metadata__": T}, SafetensorError, ""),
    "meta": (
        {"a": torch.zeros(2, device="meta")},
        NotImplementedError,
        "Cannot copy out of meta tensor; no data!",
    ),
    "empty meta": (
        {"a": torch.zeros(0, device="meta")},
        NotImplementedError,
        "Cannot copy out of meta tensor; no data!",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_torch_refuses(tmp_path, name):
    tensors, error, text = REFUSED[name]
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        for_torch.save(tensors)
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        for_torch.save_file(tensors, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"old"


def test_torch_names_tensors_that_share_memory():
    with pytest.raises(RuntimeError) as caught:
        for_torch.save({"first": T, "second": T, "own": torch.zeros(1)})
    assert "'first'" in str(caught.value)
    assert "'second'" in str(caught.value)
    assert "'own'" not in str(caught.value)
    assert "save_model" in str(caught.value)


def test_disjoint_parts_of_one_storage_are_saved():
    loaded = for_torch.load(for_torch.save({"a": T[:3], "b": T[3:], "none": torch.zeros(0)}))
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"].tolist() == [3, 4, 5]
    assert tuple(loaded["none"].shape) == (0,)


def test_golden_bytes(tmp_path):
    """The bytes are those that upstream 0.8.0 wrote and that the C++ tests write."""
    tensors = {
        "b": np.arange(4, dtype=np.float32).reshape(2, 2),
        "a": np.array([1.5, -2, 0.25], dtype=np.float32),
        "\u00e9": np.array(7, dtype=np.int64),
        "flag": np.array([True, False]),
        "half": np.array([1, -2], dtype=np.float16),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }
    path = tmp_path / "f"
    for_numpy.save_file(tensors, path, metadata={"format": "np"})
    golden = Path(__file__).parents[1] / "data" / "golden.safetensors"
    assert path.read_bytes() == golden.read_bytes()

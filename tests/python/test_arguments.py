"""Arguments of any type and value: every function returns or raises a Python error.

A wrong argument must not end the process, hang, write a file, or raise an unexpected class.
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import safetensors
import safetensors.numpy as for_numpy
from safetensors import SafetensorError, TensorSpec, safe_open
from support import file_builder, strategies
from support.file_builder import raw

EMPTY = TensorSpec(dtype="float32", shape=[0], data_ptr=0, data_len=0)


class OddError(Exception):
    """An error that an argument raises, which must propagate."""


EXPECTED = (
    OddError,
    AttributeError,  # of what is no array, or no open file: as upstream has it
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    OSError,
    SafetensorError,
)


class Odd:
    """Supports every protocol, with useless results."""

    def __fspath__(self):
        return 7

    def __index__(self):
        return -(1 << 70)

    def __len__(self):
        return -1

    def __str__(self):
        raise OddError

    def keys(self):
        """Returns keys, as a dict does."""
        return [self]


# Not an open descriptor's number: opening that is a legal thing to do.
numbers = st.one_of(
    st.integers(max_value=-1), st.integers(min_value=1 << 31), st.floats(), st.booleans()
)
plain = st.one_of(
    st.none(),
    numbers,
    st.text(max_size=8),
    st.binary(max_size=8),
    st.complex_numbers(),
    st.sampled_from([
        Odd, object, ..., slice(None), slice("a", None), slice(0, 1, 0), np.float32, np.int64(3),
        np.zeros(2), np.zeros((0, 3)), np.array("text"), np.array(None, dtype=object),
        "\ud800", "\0", "a\0b", "cpu", "cuda:0", "np", "mmap", "F32", bytearray(b"{}"),
        memoryview(b"12345678"), range(3), EMPTY,
    ]),
    st.builds(Odd),
)  # fmt: skip
hashable = st.one_of(st.none(), numbers, st.text(max_size=8), st.binary(max_size=8))
anything = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(hashable, inner, max_size=3),
    ),
    max_leaves=6,
)
quick = settings(
    max_examples=max(1, int(60 * strategies.MULTIPLIER)),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def answers(function, *args, **kwargs):
    """Returns the call's result, or None if it raises one of the expected classes."""
    try:
        return function(*args, **kwargs)
    except EXPECTED:
        return None


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file of two tensors, alone in the working directory."""
    monkeypatch.chdir(tmp_path)
    tensors = {"a": raw("F32", (3, 4)), "b": raw("U8", ())}
    return file_builder.write(tmp_path / "model.safetensors", tensors)


@quick
@given(data=st.data())
def test_opening(path, data):
    """Any argument may have any type."""
    good = {"filename": path, "framework": "np", "device": "cpu", "backend": "mmap"}
    name = data.draw(st.sampled_from(sorted(good)))
    handle = answers(safe_open, **{**good, name: data.draw(anything)})
    if handle is not None:
        assert handle.keys() == ["a", "b"]
    answers(safetensors._safe_open_handle, data.draw(anything), "np")


@quick
@given(data=st.data())
def test_a_handle(path, data):
    """Names and indices may have any type, and the handle remains usable."""
    for backend in ("mmap", "pread"):
        handle = safe_open(path, "np", backend=backend)
        answers(handle.get_tensor, data.draw(anything))
        answers(handle.get_slice, data.draw(anything))
        answers(handle.get_tensor_meta, data.draw(anything))
        answers(handle.__contains__, data.draw(anything))
        index = data.draw(anything)
        found = answers(handle.get_slice("a").__getitem__, index)
        if found is not None:
            assert isinstance(found, np.ndarray)
        answers(handle.get_slice("b").__getitem__, index)
        assert handle.get_tensor("a").shape == (3, 4)


@quick
@given(value=anything)
def test_reading_bytes(value):
    """Only the bytes of a file give tensors."""
    for function in (safetensors.deserialize, for_numpy.load):
        assert answers(function, value) is None


@quick
@given(data=st.data())
def test_saving(path, data):
    """A save that fails leaves the old file unchanged and no temporary file."""
    before = path.read_bytes()
    value = data.draw(anything)
    tensors = data.draw(st.sampled_from([value, {"a": value}, {"a": np.zeros(2), "b": value}]))
    metadata = data.draw(st.one_of(st.none(), anything))
    fine = answers(for_numpy.save, tensors, metadata)
    again = answers(for_numpy.save_file, tensors, path, metadata)
    answers(safetensors.serialize, tensors, metadata)
    assert os.listdir(path.parent) == [path.name]
    content = path.read_bytes()
    if fine is None:
        assert content == before
    else:
        assert again is None
        assert content == fine
    for_numpy.load(content)
    path.write_bytes(before)


@quick
@given(value=anything)
def test_a_target_of_any_type(path, value):
    """Only paths are accepted as targets."""
    tensors = {"a": np.zeros(2, dtype=np.float32)}
    if isinstance(value, (str, bytes)):
        return  # a file of that name is what is asked for
    for function in (for_numpy.save_file, safetensors.serialize_file):
        answers(function, tensors, value)
    assert os.listdir(path.parent) == [path.name]


@quick
@given(data=st.data())
def test_tensor_specs(data):
    """Invalid specs are refused before memory is read."""
    array = np.zeros(2, dtype=np.float32)
    fields = {"dtype": "float32", "shape": [2], "data_ptr": array.ctypes.data, "data_len": 8}
    name = data.draw(st.sampled_from(["dtype", "shape", "data_len"]))
    spec = answers(TensorSpec, **{**fields, name: data.draw(anything)})
    if spec is not None:
        answers(safetensors.serialize, {"a": spec})

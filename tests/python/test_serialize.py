"""TensorSpec, serialize, serialize_file and deserialize; saved bytes are reproducible."""

import array
import json
import mmap
import re
import struct

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import (
    SafetensorError,
    TensorSpec,
    deserialize,
    serialize,
    serialize_file,
)
from support import children

BUFFER = np.arange(24, dtype="u1")
POINTER = BUFFER.ctypes.data
SUPPORTED = (
    "bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float16, float32, float64,"
    " bfloat16, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu,"
    " float4_e2m1fn_x2, complex64"
)


def spec(dtype="float32", shape=(2, 3), data_ptr=POINTER, data_len=24):
    """Returns a TensorSpec of BUFFER's memory."""
    return TensorSpec(dtype=dtype, shape=shape, data_ptr=data_ptr, data_len=data_len)


def header_of(data):
    """Returns the header, parsed as JSON."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length])


@pytest.mark.parametrize("shape", [[2, 3], (2, 3), torch.Size([2, 3]), np.zeros((2, 3)).shape])
def test_spec_takes_sequences_as_shape(shape):
    data = serialize({"a": spec(shape=shape)})
    head = b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    assert data == struct.pack("<Q", 64) + head.ljust(64) + BUFFER.tobytes()


@pytest.mark.parametrize("word", ["F32", "xx", "", "BF16", "complex128", "float", "torch.float32"])
def test_spec_refuses_other_dtypes(word):
    text = f'Unknown dtype "{word}". Supported dtypes: {SUPPORTED}'
    with pytest.raises(SafetensorError, match=f"^{re.escape(text)}"):
        spec(word)


def test_spec_of_a_packed_dtype_shows_the_shape_in_elements():
    torchs = spec("float4_e2m1fn_x2", [2, 3], POINTER, 6)
    of_ml_dtypes = spec("float4_e2m1fn", [2, 6], POINTER, 6)
    for one in (torchs, of_ml_dtypes):
        assert (one.dtype, one.shape) == ("F4", [2, 6])
        assert header_of(serialize({"a": one})) == {
            "a": {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]}
        }


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"shape": [-1]}, OverflowError, "can't convert negative int to unsigned"),
        ({"data_ptr": -5}, OverflowError, "can't convert negative int to unsigned"),
        ({"data_len": -5}, OverflowError, "can't convert negative int to unsigned"),
        ({"shape": "ab"}, TypeError, "argument 'shape': Can't extract `str` to `Vec`"),
        (
            {"shape": (i for i in [2])},
            TypeError,
            "argument 'shape': 'generator' object is not an instance of 'Sequence'",
        ),
        (
            {"shape": [2.0]},
            TypeError,
            "argument 'shape': 'float' object cannot be interpreted as an integer",
        ),
        (
            {"dtype": torch.float32},
            TypeError,
            "argument 'dtype': 'dtype' object is not an instance of 'str'",
        ),
    ],
    ids=["shape", "pointer", "length", "str", "generator", "float", "dtype object"],
)
def test_spec_refuses_invalid_arguments(words, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        spec(**words)


def test_spec_takes_keywords_only_and_never_changes():
    with pytest.raises(TypeError):
        TensorSpec("float32", [2, 3], POINTER, 24)
    with pytest.raises(TypeError):
        TensorSpec(dtype="float32", shape=[2, 3], data_ptr=POINTER)
    one = spec()
    for name in ("dtype", "shape", "data_ptr", "data_len"):
        with pytest.raises(AttributeError):
            setattr(one, name, getattr(one, name))
    one.shape.append(7)
    assert one.shape == [2, 3]
    assert one != spec()
    assert {one: 1}[one] == 1
    with pytest.raises(TypeError, match="is not an acceptable base type"):
        type("Sub", (TensorSpec,), {})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"data_len": 20}, "invalid shape, data type, or offset for tensor"),
        ({"data_len": 0}, "invalid shape, data type, or offset for tensor"),
        (
            {"shape": [2**62, 4], "data_len": 0},
            "overflow computing buffer size from shape and/or element type",
        ),
        (
            {"dtype": "float4_e2m1fn_x2", "shape": [], "data_len": 1},
            "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte"
            " boundary, this is invalid.",
        ),
    ],
    ids=["length", "no length", "overflow", "half a byte"],
)
def test_serialize_refuses_specs_that_do_not_fit(tmp_path, words, text):
    text = f"^{re.escape('Error while serializing: ' + text)}"
    with pytest.raises(SafetensorError, match=text):
        serialize({"a": spec(**words)})
    with pytest.raises(SafetensorError, match=text):
        serialize_file({"a": spec(**words)}, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_null_pointer_is_an_error_unless_the_tensor_is_empty():
    # In a process of its own: a failure would be a crash.
    script = """
        from safetensors import SafetensorError, TensorSpec, serialize
        try:
            serialize({"a": TensorSpec(dtype="float32", shape=[2, 3], data_ptr=0, data_len=24)})
        except SafetensorError as error:
            print("refused:", error)
    """
    assert children.run(script).startswith("refused: ")
    empty = serialize({"a": spec(shape=[0], data_ptr=0, data_len=0)})
    assert header_of(empty) == {"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}


NOT_SPEC = "argument 'tensor_dict': 'dict' object is not an instance of 'TensorSpec'"


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"a": {"dtype": "float32", "shape": [1], "data": b"1234"}}, NOT_SPEC),
        ([("a", 1)], "argument 'tensor_dict': 'list' object is not an instance of 'dict'"),
        ({1: spec()}, "argument 'tensor_dict': 'int' object is not an instance of 'str'"),
    ],
    ids=["dict", "list", "int key"],
)
def test_serialize_requires_a_dict_of_specs(tmp_path, tensors, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        serialize(tensors)
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        serialize_file(tensors, tmp_path / "out")


METADATA_ERRORS = {
    "value": ({"a": 1}, "'int' object is not an instance of 'str'"),
    "none": ({"a": None}, "'None' is not an instance of 'str'"),
    "key": ({1: "a"}, "'int' object is not an instance of 'str'"),
    "list": ([], "'list' object is not an instance of 'dict'"),
    "str": ("x", "'str' object is not an instance of 'dict'"),
}


@pytest.mark.parametrize("name", METADATA_ERRORS)
def test_metadata_is_a_dict_of_str(tmp_path, name):
    metadata, text = METADATA_ERRORS[name]
    out = tmp_path / "out"
    calls = [
        lambda: serialize({"a": spec()}, metadata),
        lambda: serialize_file({"a": spec()}, out, metadata),
        lambda: for_numpy.save({"a": BUFFER}, metadata),
        lambda: for_numpy.save_file({"a": BUFFER}, out, metadata),
        lambda: for_torch.save({"a": torch.zeros(2)}, metadata),
        lambda: for_torch.save_file({"a": torch.zeros(2)}, out, metadata=metadata),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"^argument 'metadata': {re.escape(text)}"):
            call()
    assert not out.exists()


def test_serialize_takes_keywords_and_writes_the_same_to_a_file(tmp_path):
    tensors = {"b": spec(), "a": spec("float64", [3])}
    data = serialize(tensor_dict=tensors, metadata={"k": "v"})
    assert header_of(data) == {
        "__metadata__": {"k": "v"},
        "a": {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [24, 48]},
    }
    assert serialize_file(tensor_dict=tensors, filename=tmp_path / "a", metadata={"k": "v"}) is None
    assert (tmp_path / "a").read_bytes() == data
    assert serialize(tensors, None) == serialize(tensors)
    assert serialize({}) == struct.pack("<Q", 8) + b"{}      "
    assert header_of(serialize({}, {})) == {"__metadata__": {}}


def test_flatten_describes_arrays_in_memory_that_it_keeps():
    """Programs call this private function of upstream."""
    tensors = {
        "rows": np.arange(6, dtype="f4").reshape(2, 3),
        "every second": np.arange(8, dtype="i2")[::2],
        "scalar": np.float64(3),
    }
    kept = []
    specs = for_numpy._flatten(tensors, kept)
    assert len(kept) == len(tensors)
    assert serialize(specs) == for_numpy.save(tensors)


# Reading from memory.

WHOLE = for_numpy.save({"a": np.arange(3, dtype="f4"), "b": np.array([[7]], "u1")}, {"k": "v"})


def in_a_map():
    """Returns WHOLE in anonymous memory."""
    memory = mmap.mmap(-1, len(WHOLE))
    memory.write(WHOLE)
    return memory


BYTES_LIKE = {
    "bytes": lambda: WHOLE,
    "bytearray": lambda: bytearray(WHOLE),
    "memoryview": lambda: memoryview(WHOLE),
    "part of a memoryview": lambda: memoryview(b"xx" + WHOLE + b"xx")[2:-2],
    "mmap": in_a_map,
    "array": lambda: array.array("B", WHOLE),
    "ndarray": lambda: np.frombuffer(WHOLE, "u1"),
}


@pytest.mark.parametrize("name", BYTES_LIKE)
def test_memory_of_any_kind_is_read(name):
    source = BYTES_LIKE[name]()
    parts = dict(deserialize(source))
    assert parts.keys() == {"a", "b"}
    assert parts["b"] == {"dtype": "U8", "shape": [1, 1], "data": bytearray(b"\7")}
    assert type(parts["a"]["data"]) is bytearray
    assert np.frombuffer(parts["a"]["data"], "f4").tolist() == [0, 1, 2]
    for module in (for_numpy, for_torch):
        loaded = module.load(source)
        assert loaded["a"].tolist() == [0, 1, 2]
        assert loaded["b"].tolist() == [[7]]
        loaded["a"][:] = -1
    parts["a"]["data"][:] = bytes(12)
    assert bytes(source) == WHOLE


def test_loaded_tensors_do_not_change_with_the_source():
    source = bytearray(WHOLE)
    loaded = [for_numpy.load(source)["a"], for_torch.load(source)["a"]]
    data = dict(deserialize(bytes=source))["a"]["data"]
    source[:] = bytes(len(source))
    assert [each.tolist() for each in loaded] == [[0, 1, 2]] * 2
    assert np.frombuffer(data, "f4").tolist() == [0, 1, 2]
    source.clear()  # nothing still holds it


@pytest.mark.parametrize("read", [deserialize, for_numpy.load, for_torch.load])
def test_strided_buffers_and_other_objects_are_refused(read):
    doubled = b"".join(bytes([byte, 0]) for byte in WHOLE)
    with pytest.raises((TypeError, ValueError, BufferError)):
        read(memoryview(doubled)[::2])
    with pytest.raises(
        TypeError, match=r"^argument 'bytes': 'str' object is not an instance of 'bytes'"
    ):
        read("x")
    with pytest.raises(TypeError, match=r"^argument 'bytes': 'None' is not an instance of 'bytes'"):
        read(None)
    with pytest.raises(SafetensorError, match=r"^Error while deserializing"):
        read(WHOLE[:-1])

"""safetensors.tensorflow: files of TensorFlow tensors."""

import os
import warnings

import pytest

from support import file_builder
from support.file_builder import raw
from support.framework_cases import Cases, Kit, array_of, tensor_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import tensorflow as tf
import safetensors.tensorflow
from safetensors import SafetensorError, safe_open

TYPES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32",
    "U32": "uint32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U16": "uint16",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
# Which of these there are depends on the version.
LATER_TYPES = {
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F4": "float4_e2m1fn",
}  # fmt: skip
for code, name in LATER_TYPES.items():
    if hasattr(tf.dtypes.experimental, name):
        TYPES[code] = name


def describe(tensor):
    """The type, shape and bytes of a tensor."""
    assert tf.is_tensor(tensor)
    return tensor.dtype.name, tuple(tensor.shape), tensor.numpy().tobytes()


class TestTensorflow(Cases):
    """What holds for every framework."""

    kit = Kit("tf", safetensors.tensorflow, "TensorFlow", TYPES, describe, {})


def test_both_names_of_the_framework(tmp_path):
    """safe_open accepts both names."""
    path = file_builder.write(tmp_path / "word.safetensors", {"a": tensor_of("F32")})
    with safe_open(path, "tensorflow") as handle:
        assert describe(handle.get_tensor("a")) == describe(
            safetensors.tensorflow.load_file(path)["a"]
        )


def test_a_tensor_is_a_copy(tmp_path):
    """Writing to a variable made of one tensor changes neither another nor the file."""
    tensors = {str(i): raw("F32", (16 + i,)) for i in range(32)}
    path = file_builder.write(tmp_path / "copy.safetensors", tensors)
    before = path.read_bytes()
    with safe_open(path, "tf") as handle:
        for name, tensor in tensors.items():
            second = handle.get_tensor(name)
            variable = tf.Variable(handle.get_tensor(name))
            variable.assign(tf.zeros_like(second))
            assert second.numpy().tobytes() == tensor.data
            assert handle.get_tensor(name).numpy().tobytes() == tensor.data
    assert path.read_bytes() == before


def test_variables_are_saved():
    """Variables are saved as their tensors, also scalars, which upstream cannot save."""
    scalar, vector = tf.Variable(2.5), tf.Variable([1.0, 2.0], dtype=tf.bfloat16)
    content = safetensors.tensorflow.save({"scalar": scalar, "vector": vector})
    loaded = safetensors.tensorflow.load(content)
    assert describe(loaded["scalar"]) == describe(scalar.read_value())
    assert describe(loaded["vector"]) == describe(vector.read_value())


def test_unsupported_types():
    """The error names the type, or is Python's."""
    with pytest.raises(SafetensorError, match="object"):
        safetensors.tensorflow.save({"a": tf.constant(["text"])})
    with pytest.raises(SafetensorError, match="int4"):
        safetensors.tensorflow.save({"a": tf.cast([1, 2], tf.dtypes.experimental.int4)})
    with pytest.raises(AttributeError, match="numpy"):
        safetensors.tensorflow.save({"a": [1, 2]})


def test_helpers():
    """_np2tf and _tf2np are inverse."""
    arrays = {code: array_of(tensor_of(code)) for code in ("F32", "BF16", "C64", "BOOL")}
    back = safetensors.tensorflow._tf2np(safetensors.tensorflow._np2tf(arrays))
    for code, array in arrays.items():
        assert back[code].dtype == array.dtype
        assert back[code].tobytes() == array.tobytes()

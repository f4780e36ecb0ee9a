"""safetensors.mlx, and files that MLX itself wrote or reads."""

import json

import mlx.core as mx
import numpy as np
import pytest

import safetensors.mlx
from safetensors import safe_open
from support import children, file_builder, framework_cases
from support.file_builder import raw
from support.framework_cases import Cases, Kit, array_of, tensor_of

TYPES = {
    "U64": "uint64", "I64": "int64", "C64": "complex64", "F32": "float32", "U32": "uint32",
    "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U16": "uint16", "I16": "int16",
    "I8": "int8", "U8": "uint8", "BOOL": "bool",
    # What it makes of types that it has not.
    "F64": "float32", "F8_E4M3": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip
CHANGED = {"F64": "float32", "F8_E4M3": "uint8", "F8_E8M0": "uint8"}


def describe(array):
    """The type, shape and bytes of an array."""
    assert isinstance(array, mx.array)
    name = str(array.dtype).rpartition(".")[2]
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return name, tuple(array.shape), np.asarray(bits).tobytes()


class TestMlx(Cases):
    """What holds for every framework."""

    kit = Kit("mlx", safetensors.mlx, "MLX", TYPES, describe, CHANGED)


@pytest.fixture
def arrays():
    """Arrays of the types that MLX's own writer takes."""
    return {
        "first": mx.arange(6).reshape(2, 3),
        "second": mx.array([1.5, -2.0, 3e38], dtype=mx.bfloat16),
        "third": mx.array([True, False, True]),
        "fourth": mx.array([1, 2, 3], dtype=mx.uint8),
        "scalar": mx.array(2.5, dtype=mx.float16),
    }


def described(arrays):
    """A dict of arrays by value."""
    return {name: describe(array) for name, array in arrays.items()}


@pytest.mark.parametrize("metadata", [None, {"format": "mlx"}], ids=repr)
def test_files_that_mlx_wrote(tmp_path, arrays, metadata):
    """Their header is not padded, and has null for missing metadata."""
    path = tmp_path / "theirs.safetensors"
    mx.save_safetensors(str(path), arrays, *([metadata] if metadata else []))
    header, _ = file_builder.split(path.read_bytes())
    assert json.loads(header)["__metadata__"] == metadata
    assert header.endswith(b"}")
    for backend in ("mmap", "pread"):
        with safe_open(path, "mlx", backend=backend) as handle:
            assert handle.metadata() == metadata
            assert described(handle.get_tensors()) == described(arrays)
            part = handle.get_slice("first")[:, 1:]
            assert describe(part) == describe(arrays["first"][:, 1:])
        assert described(safetensors.mlx.load_file(path, backend=backend)) == described(arrays)
    assert described(safetensors.mlx.load(path.read_bytes())) == described(arrays)


@pytest.mark.parametrize("metadata", [None, {"format": "mlx"}], ids=repr)
def test_mlx_reads_our_files(tmp_path, arrays, metadata):
    """It reads values and metadata."""
    path = tmp_path / "ours.safetensors"
    safetensors.mlx.save_file(arrays, path, metadata)
    loaded, found = mx.load(str(path), return_metadata=True)
    assert described(loaded) == described(arrays)
    assert found == (metadata or {})


@pytest.mark.parametrize("code", ["F8_E4M3", "F8_E8M0"])
def test_8_bit_types_equal_those_of_mlxs_reader(tmp_path, code):
    """MLX's own reader returns the same arrays."""
    path = file_builder.write(tmp_path / "fp8.safetensors", {"a": tensor_of(code)})
    assert describe(safetensors.mlx.load_file(path)["a"]) == describe(mx.load(str(path))["a"])


def test_an_array_is_a_copy(tmp_path):
    """Two arrays of one tensor do not share memory, and the file does not change."""
    path = file_builder.write(tmp_path / "copy.safetensors", {"a": raw("F32", (4,))})
    before = path.read_bytes()
    with safe_open(path, "mlx") as handle:
        first, second = handle.get_tensor("a"), handle.get_tensor("a")
        first[:] = 7
        mx.eval(first)
        assert describe(second) == describe(handle.get_tensor("a")) != describe(first)
    assert path.read_bytes() == before


def test_values_are_saved_whatever_the_layout():
    """Transposed, strided and unevaluated arrays are saved."""
    base = mx.arange(24, dtype=mx.float32).reshape(4, 6)
    for array in (base.T, base[::2, 1::2], base + 1, mx.broadcast_to(base[:1], (3, 6))):
        for typed in (array, array.astype(mx.bfloat16)):
            saved = safetensors.mlx.load(safetensors.mlx.save({"a": typed}))["a"]
            assert describe(saved) == describe(mx.contiguous(typed))


def test_helpers():
    """_np2mx and _mx2np are inverse."""
    arrays = {code: array_of(tensor_of(code)) for code in ("F32", "BF16", "C64", "BOOL")}
    back = safetensors.mlx._mx2np(safetensors.mlx._np2mx(arrays))
    for code, array in arrays.items():
        assert back[code].dtype == array.dtype
        assert back[code].tobytes() == array.tobytes()
    assert back["F32"].shape == framework_cases.SHAPE


def test_float64_is_saved_as_it_is():
    """MLX has the type on the CPU; only read tensors become float32."""
    array = mx.array(np.array([1e300, 1.0]), dtype=mx.float64)
    content = safetensors.mlx.save({"a": array})
    assert safetensors.numpy.load(content)["a"].tolist() == [1e300, 1.0]


def test_without_ml_dtypes(tmp_path):
    """All types can be read; the error of a save says what to install."""
    tensors = {code: tensor_of(code) for code in ("BF16", "F8_E4M3", "F8_E8M0")}
    file = file_builder.write(tmp_path / "a.safetensors", tensors)
    children.run(
        """
        sys.modules["ml_dtypes"] = None
        import mlx.core as mx
        import safetensors.mlx
        content = open(sys.argv[1], "rb").read()
        for arrays in (
            safetensors.mlx.load(content),
            safetensors.mlx.load_file(sys.argv[1]),
            safetensors.mlx.load_file(sys.argv[1], backend="pread"),
        ):
            types = {name: arrays[name].dtype for name in arrays}
            assert types == {"BF16": mx.bfloat16, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8}
        try:
            safetensors.mlx.save(arrays)
        except safetensors.SafetensorError as error:
            assert "pip install ml_dtypes" in str(error)
        else:
            raise AssertionError
        """,
        file,
    )

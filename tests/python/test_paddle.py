"""safetensors.paddle: files of Paddle tensors."""

import ctypes
import sys
import warnings

import numpy as np
import pytest

from support import children, file_builder
from support.file_builder import Raw, raw
from support.framework_cases import Cases, Kit, array_of, tensor_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import paddle
import safetensors.paddle
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open

TYPES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32",
    "U32": "uint32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "I16": "int16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip


def describe(tensor):
    """The type, shape and bytes of a tensor."""
    assert isinstance(tensor, paddle.Tensor)
    name = str(tensor.dtype).rpartition(".")[2]
    return name, tuple(tensor.shape), tensor.numpy().tobytes()


class TestPaddle(Cases):
    """What holds for every framework."""

    kit = Kit("paddle", safetensors.paddle, "Paddle", TYPES, describe, {})


@pytest.fixture
def path(tmp_path):
    """A file of one tensor."""
    return file_builder.write(tmp_path / "one.safetensors", {"a": raw("F32", (512, 64))})


def test_values_equal_paddles(tmp_path):
    """This holds for types that NumPy lacks."""
    values = np.array([1.0, -2.5, 0.0, 448.0], dtype=np.float32)
    for code in ("BF16", "F8_E4M3"):
        typed = values.astype(array_of(tensor_of(code)).dtype)
        file = {"a": Raw(code, (4,), typed.tobytes())}
        path = file_builder.write(tmp_path / "values.safetensors", file)
        for tensor in (
            safetensors.paddle.load_file(path)["a"],
            safetensors.paddle.load(path.read_bytes())["a"],
            safetensors.paddle._np2paddle({"a": typed})["a"],
        ):
            assert tensor.astype("float32").tolist() == typed.astype(np.float32).tolist()


@pytest.mark.parametrize("code", ["U32", "U64"])
def test_types_with_few_kernels(tmp_path, code):
    """Upstream cannot read them; Paddle can convert them."""
    data = (7).to_bytes(4 if code == "U32" else 8, "little")
    path = file_builder.write(tmp_path / "unsigned.safetensors", {"a": Raw(code, (1,), data)})
    assert safetensors.paddle.load_file(path)["a"].astype("float32").tolist() == [7.0]


def test_uint16_is_not_taken_for_bfloat16(tmp_path):
    """Upstream returns it as bfloat16, as Paddle does with NumPy arrays."""
    path = file_builder.write(tmp_path / "u16.safetensors", {"a": tensor_of("U16")})
    with pytest.raises(SafetensorError, match="U16: Paddle has no such type"):
        safetensors.paddle.load_file(path)
    with safe_open(path, "np") as handle:
        assert handle.get_tensor("a").dtype == np.uint16


@pytest.mark.parametrize("code", ["F32", "BF16", "U32"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_tensor_is_a_copy(tmp_path, code, backend):
    """Writing to one changes neither another nor the file; with upstream they share pages."""
    path = file_builder.write(tmp_path / "copy.safetensors", {"a": raw(code, (64, 16))})
    before = path.read_bytes()
    with safe_open(path, "paddle", backend=backend) as handle:
        first, second = handle.get_tensor("a"), handle.get_tensor("a")
        expected = describe(second)
        assert first.stop_gradient
        assert first.data_ptr() != second.data_ptr()
        ctypes.memset(first.data_ptr(), 0, 64)
        assert describe(first) != expected
        assert describe(second) == describe(handle.get_tensor("a")) == expected
    assert path.read_bytes() == before


def test_slices_can_be_saved(path):
    """They are contiguous for any columns."""
    with safe_open(path, "paddle") as handle:
        part = handle.get_slice("a")
        for tensor in (part[2:4], part[:, 1:3], part[::-1], part[5]):
            assert tensor.is_contiguous()
            again = safetensors.paddle.load(safetensors.paddle.save({"a": tensor}))["a"]
            assert describe(again) == describe(tensor)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_tensors_may_live_until_the_end(path, backend):
    """Python exits cleanly with tensors alive; with upstream it aborts."""
    children.run(
        """
        import warnings
        warnings.simplefilter("ignore")
        import paddle
        import safetensors.paddle
        sys.kept = safetensors.paddle.load_file(sys.argv[1], backend=sys.argv[2])
        layer = paddle.nn.Linear(64, 512)
        layer.weight.set_value(sys.kept["a"].t())
        """,
        path, backend,
    )  # fmt: skip


def test_tensors_that_cannot_be_saved():
    """Upstream's errors."""
    save = safetensors.paddle.save
    with pytest.raises(ValueError, match=r"^Expected a dict of \[str, paddle\.Tensor\] but"):
        save([1])
    with pytest.raises(ValueError, match=r"^Key `a` is invalid, expected paddle\.Tensor but"):
        save({"a": np.ones(2)})
    with pytest.raises(ValueError, match="non contiguous tensor: `a` which is not allowed"):
        save({"a": paddle.arange(6).reshape([2, 3]).t()})
    with pytest.raises(ValueError, match="sparse tensor: `a`"):
        save({"a": paddle.sparse.sparse_coo_tensor([[0, 1], [0, 1]], [1.0, 2.0])})
    with pytest.raises(KeyError):
        save({"a": paddle.ones([2], "complex128")})


def test_devices(path):
    """Both functions load to the CPU; a missing device is Paddle's error."""
    content = path.read_bytes()
    for tensor in (
        safetensors.paddle.load(content, "cpu")["a"],
        safetensors.paddle.load(content, device="cpu")["a"],
        safetensors.paddle.load_file(path, "cpu")["a"],
        safetensors.paddle.load_file(path, device="cpu")["a"],
    ):
        assert tensor.place.is_cpu_place()
    if paddle.is_compiled_with_cuda():
        pytest.skip("what follows needs a Paddle without CUDA")
    for device in ("gpu", "gpu:0", "cuda:0", "cuda"):
        with pytest.raises(ValueError, match="not compiled with CUDA"):
            safetensors.paddle.load(content, device)
        with pytest.raises(ValueError, match="not compiled with CUDA"):
            safetensors.paddle.load_file(path, device)
    with pytest.raises(ValueError, match="not compiled with CUDA"):
        safetensors.paddle.load_file(path, 0)


def test_tables(upstream):
    """Tables have upstream's entries and the types that it lacks."""
    module = safetensors.paddle
    for table in ("_SIZE", "_TYPES", "NPDTYPES"):
        source = "sorted(map(str, __import__('importlib').import_module('safetensors.paddle')"
        theirs = upstream.evaluate(f"{source}.{table}.items()))").unwrap()
        assert set(theirs) <= set(map(str, getattr(module, table).items()))
    assert module._getdtype("BF16") == paddle.bfloat16
    with pytest.raises(KeyError):
        module._getdtype("F6_E2M3")
    for code, dtype in module._TYPES.items():
        assert module._SIZE[dtype] == np.dtype(module.NPDTYPES[dtype]).itemsize, code


def test_helpers():
    """Other programs may call the private functions."""
    module, kept = safetensors.paddle, []
    tensors = {"a": paddle.to_tensor([[1.0, 2.0]]), "b": paddle.ones([3], "bfloat16")}
    specs = module._flatten(tensors, kept)
    assert all(isinstance(spec, TensorSpec) for spec in specs.values())
    assert len(kept) == 2
    array, dense = module._to_ndarray(tensors["b"], "b")
    assert array.tobytes() == b"\x80\x3f" * 3
    assert dense.data_ptr() == array.ctypes.data
    back = module._view2paddle(deserialize(module.save(tensors)), "cpu")
    assert {name: describe(back[name]) for name in back} == {
        name: describe(tensors[name]) for name in tensors
    }
    arrays = module._paddle2np(tensors)
    assert arrays["b"].dtype == np.uint16
    again = module._np2paddle(arrays)
    assert describe(again["b"]) == describe(tensors["b"])
    arrays["a"][0, 0] = 9
    assert again["a"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_handles_for_a_gpu(path, device):
    """Handles accept torch's names of devices; Paddle raises without a GPU."""
    if paddle.is_compiled_with_cuda():
        pytest.skip("what follows needs a Paddle without CUDA")
    handle = safe_open(path, "paddle", device=device)
    assert handle.get_slice("a").get_shape() == [512, 64]
    for read in (lambda: handle.get_tensor("a"), lambda: handle.get_slice("a")[:2]):
        with pytest.raises(ValueError, match="not compiled with CUDA"):
            read()


def test_no_type_needs_ml_dtypes(tmp_path):
    """Saving and loading, to files and memory, work without ml_dtypes."""
    tensors = {code: tensor_of(code) for code in ("BF16", "F8_E4M3", "F8_E5M2")}
    file = file_builder.write(tmp_path / "a.safetensors", tensors)
    children.run(
        """
        import warnings
        warnings.simplefilter("ignore")
        sys.modules["ml_dtypes"] = None
        import safetensors.paddle
        content = open(sys.argv[1], "rb").read()
        for tensors in (
            safetensors.paddle.load(content),
            safetensors.paddle.load_file(sys.argv[1]),
            safetensors.paddle.load_file(sys.argv[1], backend="pread"),
        ):
            types = {name: str(tensors[name].dtype) for name in tensors}
            assert types == {
                "BF16": "paddle.bfloat16",
                "F8_E4M3": "paddle.float8_e4m3fn",
                "F8_E5M2": "paddle.float8_e5m2",
            }
            again = safetensors.paddle.save(tensors)
            assert dict(safetensors.deserialize(again)) == dict(safetensors.deserialize(content))
        part = safetensors.safe_open(sys.argv[1], "paddle").get_slice("BF16")[:1]
        assert part.shape == [1, 4]
        """,
        file,
    )
    assert "ml_dtypes" in sys.modules

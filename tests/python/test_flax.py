"""safetensors.flax: files of JAX arrays."""

import warnings

import numpy as np
import pytest

from support import file_builder
from support.dtype_table import SAVEABLE
from support.file_builder import raw
from support.framework_cases import Cases, Kit, array_of, tensor_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import jax
    import jax.numpy as jnp
import safetensors.flax
import safetensors.numpy
from safetensors import SafetensorError, safe_open

TYPES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32",
    "U32": "uint32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "U16": "uint16",
    "I16": "int16", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I8": "int8", "U8": "uint8", "F4": "float4_e2m1fn", "BOOL": "bool",
}  # fmt: skip
assert set(TYPES) == set(SAVEABLE)


def describe(array):
    """The type, shape and bytes of an array."""
    assert isinstance(array, jax.Array)
    return str(array.dtype), array.shape, np.asarray(array).tobytes()


class TestFlax(Cases):
    """The common tests, with JAX's 64-bit types enabled."""

    kit = Kit("flax", safetensors.flax, "JAX", TYPES, describe, {})

    @pytest.fixture(autouse=True)
    def _types_of_64_bits(self):
        before = jax.config.jax_enable_x64
        jax.config.update("jax_enable_x64", True)
        yield
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("code", ["I64", "U64", "F64"])
def test_types_of_64_bits_follow_the_option(tmp_path, code):
    """Without it they become 32-bit types, silently, as in jnp.array."""
    small = {"I64": "int32", "U64": "uint32", "F64": "float32"}[code]
    array = np.arange(6).astype(array_of(tensor_of(code)).dtype).reshape(2, 3)
    path = tmp_path / "wide.safetensors"
    safetensors.numpy.save_file({"a": array}, path)
    assert not jax.config.jax_enable_x64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = safetensors.flax.load_file(path)["a"]
    assert str(loaded.dtype) == small
    assert loaded.tolist() == array.tolist()


def test_an_array_is_a_copy(tmp_path):
    """It does not share memory with the mapped file, at any offset."""
    tensors = {str(i): raw("F32", (16 + i,)) for i in range(32)}
    path = file_builder.write(tmp_path / "copy.safetensors", tensors)
    loaded = safetensors.flax.load_file(path)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size - 4096 if path.stat().st_size > 4096 else 0)
        file.write(bytes(4096))
    for name, tensor in tensors.items():
        assert np.asarray(loaded[name]).tobytes() == tensor.data


def test_a_buffer_may_be_donated(tmp_path):
    """A compiled function that writes over its argument leaves other arrays alone."""
    path = file_builder.write(tmp_path / "donated.safetensors", {"a": raw("F32", (4096,))})
    with safe_open(path, "flax") as handle:
        first, second = handle.get_tensor("a"), handle.get_tensor("a")
        jax.jit(lambda x: x * 0, donate_argnums=0)(first).block_until_ready()
        assert describe(second) == describe(handle.get_tensor("a"))


def test_values_are_saved_whatever_the_layout():
    """Transposed, strided and broadcast arrays."""
    base = jnp.arange(24, dtype=jnp.float32).reshape(4, 6)
    for array in (base.T, base[::2, 1::2], jnp.broadcast_to(base[:1], (3, 6))):
        for typed in (array, array.astype(jnp.bfloat16)):
            saved = safetensors.flax.load(safetensors.flax.save({"a": typed}))["a"]
            assert describe(saved) == describe(typed)


def test_types_that_files_do_not_have():
    """The error names the type."""
    with pytest.raises(SafetensorError, match="int4"):
        safetensors.flax.save({"a": jnp.ones(2, dtype=jnp.int4)})
    with pytest.raises(TypeError, match="PRNGKey"):
        safetensors.flax.save({"a": jax.random.key(0)})


def test_helpers():
    """_np2jnp and _jnp2np are inverse."""
    arrays = {code: array_of(tensor_of(code)) for code in ("F32", "BF16", "F8_E4M3", "BOOL")}
    back = safetensors.flax._jnp2np(safetensors.flax._np2jnp(arrays))
    for code, array in arrays.items():
        assert back[code].dtype == array.dtype
        assert back[code].tobytes() == array.tobytes()


def test_parameters_of_a_model(tmp_path):
    """A flat dict of flax is saved and restored."""
    linen = pytest.importorskip("flax.linen")
    traverse = pytest.importorskip("flax.traverse_util")
    model = linen.Dense(3, param_dtype=jnp.bfloat16)
    params = model.init(jax.random.key(0), jnp.ones((1, 5)))
    path = tmp_path / "dense.safetensors"
    safetensors.flax.save_file(traverse.flatten_dict(params, sep="."), path)
    back = traverse.unflatten_dict(safetensors.flax.load_file(path), sep=".")
    assert model.apply(back, jnp.ones((1, 5))).tolist() == (
        model.apply(params, jnp.ones((1, 5))).tolist()
    )


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", 1 << 40), ("int64", -(1 << 40)), ("uint64", 1 << 63)]
)
def test_integers_that_are_wrapped(tmp_path, dtype, value):
    """JAX keeps their low 32 bits unless 64-bit types are enabled: a warning says so."""
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(
        {"a": np.array([value + 1], dtype), "b": np.array([7], dtype)}, path
    )
    was = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        for load in (safetensors.flax.load_file, lambda p: safetensors.flax.load(p.read_bytes())):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                with pytest.warns(
                    UserWarning, match=f"{dtype} has values that do not fit"
                ) as caught:
                    assert int(load(path)["a"][0]) == 1
            assert [each.filename for each in caught] == [__file__]
        jax.config.update("jax_enable_x64", True)
        assert int(safetensors.flax.load_file(path)["a"][0]) == value + 1
    finally:
        jax.config.update("jax_enable_x64", was)

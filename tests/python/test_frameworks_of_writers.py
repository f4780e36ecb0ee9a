"""safe_create and update_file take the tensors of JAX and MLX, also of types that NumPy lacks."""

import numpy as np
import pytest

from safetensors import SafetensorError, safe_create, safe_open, update_file
from safetensors import numpy as stn
from support import children


def by_safe_create(path, tensor):
    with safe_create(path) as writer:
        writer["x"] = tensor


def by_update_file(path, tensor):
    stn.save_file({"z": np.ones(1)}, path)
    update_file(path, {"x": tensor}, add=True)


class Refusing:
    """A tensor whose framework hands out no memory."""

    dtype, shape = "bfloat16", (2,)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        raise self.error


@pytest.mark.parametrize("write", [by_safe_create, by_update_file])
@pytest.mark.parametrize("kind", [BufferError, RuntimeError, TypeError, ValueError])
def test_tensors_that_hand_out_no_memory(tmp_path, write, kind):
    """The error names the tensor and its class, and the file stays as it was."""
    tensor, path = Refusing(), tmp_path / "a.safetensors"
    tensor.error = kind("no such type")
    text = r"tensor `x`, a .*\.Refusing of type bfloat16, cannot be read .*: no such type"
    with pytest.raises(SafetensorError, match=text) as caught:
        write(path, tensor)
    assert caught.value.__cause__ is tensor.error
    assert not path.exists() or stn.load_file(path).keys() == {"z"}


@pytest.mark.parametrize("save", [stn.save, lambda tensors: stn.save_file_async(tensors, "a")])
def test_arrays_that_numpy_cannot_read(save):
    """The error names the tensor, and for a tensor of torch what saves it."""
    tensor = Refusing()
    tensor.error = RuntimeError("no such type")
    with pytest.raises(
        SafetensorError, match=r"tensor `x`, a .*\.Refusing of type bfloat16, cannot"
    ):
        save({"a": np.ones(1), "x": tensor})
    torch = pytest.importorskip("torch")
    with pytest.raises(SafetensorError, match="`x` is invalid, expected numpy.ndarray but"):
        save({"x": torch.ones(1, dtype=torch.bfloat16)})


WRITE = """
import os, warnings
warnings.simplefilter("ignore")
import numpy as np
import {imports}
from safetensors import safe_create, update_file
from safetensors import numpy as stn
assert "torch" not in sys.modules
tensors = {tensors}
with safe_create(sys.argv[1]) as writer:
    for name, tensor in tensors.items():
        writer[name] = tensor
stn.save_file({{"z": np.ones(1)}}, sys.argv[2])
update_file(sys.argv[2], tensors, add=True, remove=["z"])
stn.save_file(tensors, sys.argv[3])
stn.save_file_async(tensors, sys.argv[4]).result()
assert stn.save(tensors) == open(sys.argv[3], "rb").read()
os.rename(stn.save_files(tensors, os.path.dirname(sys.argv[3]))[0], sys.argv[5])
assert "torch" not in sys.modules
"""

JAX = """{
    "f32": jnp.arange(6.0).reshape(2, 3).T, "bf16": jnp.ones((2, 2), jnp.bfloat16) * 1.5,
    "fp8": jnp.ones(3, jnp.float8_e4m3fn), "bool": jnp.zeros(3, bool),
}"""
MLX = """{
    "f32": mx.arange(6.0).reshape(2, 3).T, "bf16": mx.ones((2, 2)).astype(mx.bfloat16) * 1.5,
    "bool": mx.zeros(3).astype(mx.bool_),
}"""
EXPECTED = {
    "f32": ("F32", np.arange(6, dtype="f4").reshape(2, 3).T.tobytes("C")),
    "bf16": ("BF16", np.full(4, 0x3FC0, "<u2").tobytes()),
    "fp8": ("F8_E4M3", bytes([0x38] * 3)),
    "bool": ("BOOL", bytes(3)),
}


@pytest.mark.parametrize(
    ("module", "imports", "tensors"),
    [("jax", "jax.numpy as jnp", JAX), ("mlx.core", "mlx.core as mx", MLX)],
)
def test_types_that_numpy_lacks(tmp_path, module, imports, tensors):
    """In a process of its own, without torch, which reads them, too."""
    pytest.importorskip(module)
    pytest.importorskip("ml_dtypes")
    paths = [tmp_path / name for name in ("created", "updated", "saved", "async", "shards")]
    children.run(WRITE.format(imports=imports, tensors=tensors), *paths)
    for path in paths:
        with safe_open(path, "np") as file:
            assert len(file) == tensors.count('":')
            for name in file:
                code, data = EXPECTED[name]
                assert file.get_tensor_meta(name).dtype == code
                assert file.get_tensor(name).tobytes() == data

"""Safe and fast storage of tensors.

    from safetensors import safe_open

    with safe_open("model.safetensors", framework="pt") as f:
        tensor = f.get_tensor("weight")

The modules ``safetensors.torch``, ``safetensors.numpy`` and their siblings load and save whole
files. Nothing here imports a framework.
"""

from ._core import (
    PySafeSlice,
    SafetensorError,
    TensorMeta,
    TensorSpec,
    __version__,
    _safe_open_handle,
    deserialize,
    safe_open,
    serialize,
    serialize_file,
)

# Some programs reach for it as an attribute, without importing it.
from . import _safetensors_rust  # isort: skip

__all__ = [
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "__version__",
    "_safe_open_handle",
    "_safetensors_rust",
    "deserialize",
    "safe_open",
    "serialize",
    "serialize_file",
]

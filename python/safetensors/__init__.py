"""Safe and fast storage of tensors.

    from safetensors import safe_open

    with safe_open("model.safetensors", framework="pt") as f:
        tensor = f.get_tensor("weight")

The modules ``safetensors.torch``, ``safetensors.numpy`` and their siblings load and save whole
files. Nothing here imports a framework.
"""

from ._core import (
    PrefetchLoader,
    PySafeSlice,
    SafetensorError,
    TensorMeta,
    TensorSpec,
    __version__,
    _safe_open_handle,
    deserialize,
    io_config,
    release_staging,
    safe_open,
    serialize,
    serialize_file,
)

TYPE_CHECKING = False  # typing's own takes milliseconds to import
if TYPE_CHECKING:
    from types import ModuleType

    from . import _safetensors_rust

__all__ = [
    "PrefetchLoader",
    "PySafeSlice",
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "__version__",
    "_safe_open_handle",
    "_safetensors_rust",
    "deserialize",
    "io_config",
    "release_staging",
    "safe_open",
    "serialize",
    "serialize_file",
]


def __getattr__(name: str) -> "ModuleType":
    # Some programs reach for it as an attribute, without importing it.
    if name == "_safetensors_rust":
        import importlib

        return importlib.import_module("._safetensors_rust", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

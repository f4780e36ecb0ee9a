"""Safe and fast storage of tensors.

    from safetensors import safe_open

    with safe_open("model.safetensors", framework="pt") as f:
        tensor = f.get_tensor("weight")

The modules ``safetensors.torch``, ``safetensors.numpy`` and their siblings load and save whole
files. Nothing here imports a framework.
"""

from ._core import (
    SafetensorError,
    __version__,
    deserialize,
    safe_open,
    serialize,
    serialize_file,
)

TYPE_CHECKING = False  # typing's own takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any

    from . import _safetensors_rust
    from ._core import (
        PrefetchLoader,
        PySafeSlice,
        TensorMeta,
        TensorSpec,
        _safe_open_handle,
        io_config,
        release_staging,
    )

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


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> "Any":
    # Some programs reach for it as an attribute, without importing it.
    if name == "_safetensors_rust":
        import importlib

        return importlib.import_module("._safetensors_rust", __name__)
    # What is not there is made when it is asked for.
    if name in __all__:
        from . import _core

        return getattr(_core, name)
    if name.startswith("Safetensor"):
        from . import _core, _errors

        found = _errors.class_named(name, "Safetensor", _core._error_class)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

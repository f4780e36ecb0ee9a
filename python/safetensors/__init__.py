"""Stores tensors safely and fast.

    from safetensors import safe_open

    with safe_open("model.safetensors", framework="pt") as f:
        tensor = f.get_tensor("weight")

The modules `safetensors.torch`, `.numpy`, `.tensorflow`, `.flax`, `.mlx` and `.paddle` load and
save whole files. This module imports no framework.
"""

import sys

from . import _core
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

TYPE_CHECKING = False  # importing typing for it would take milliseconds
if TYPE_CHECKING:
    from typing import Any

    # What only the compiled module imports. PyInstaller and others follow import statements.
    from . import _errors, _frameworks  # noqa: F401
    from ._checking.verify import IntegrityError
    from ._delta import errors as _delta_errors  # noqa: F401
    from ._outline import views as _views  # noqa: F401
    from ._range_reader import RangeReader
    from ._remote import open as _remote_open  # noqa: F401
    from ._saving.recovery import recover
    from ._saving.specs import specs_of
    from ._saving.update import update_file
    from ._saving.writer import SafeWriter, safe_create
    from ._summary import Summary, summary
    from ._torch import transfer as _transfer  # noqa: F401

    from . import _safetensors_rust  # made below  # isort: skip

__all__ = [
    "IntegrityError",
    "PrefetchLoader",
    "PySafeSlice",
    "RangeReader",
    "SafeWriter",
    "SafetensorError",
    "Summary",
    "TensorMeta",
    "TensorSpec",
    "__version__",
    "_safe_open_handle",
    "_safetensors_rust",
    "deserialize",
    "io_config",
    "recover",
    "release_staging",
    "safe_create",
    "safe_open",
    "serialize",
    "serialize_file",
    "specs_of",
    "summary",
    "update_file",
]


def _register_alias() -> None:
    """Makes the module `_safetensors_rust`: the compiled one, under upstream's name.

    SafetensorError says that it is from this module. cloudpickle, of Ray, Dask and joblib, ships a
    class as a copy unless its module is in sys.modules, and `except` does not catch a copy. The
    module has no file, because finding and reading one takes a twentieth of the import.
    """
    name = f"{__name__}._safetensors_rust"
    alias = type(sys)(name, "The compiled module, under upstream's name.")
    names = [
        "PrefetchLoader",
        "PySafeSlice",
        "SafetensorError",
        "TensorMeta",
        "TensorSpec",
        "TensorStream",
        "__version__",
        "_safe_open_handle",
        "deserialize",
        "safe_open",
        "serialize",
        "serialize_file",
    ]
    vars(alias).update({each: getattr(_core, each) for each in names}, __all__=names)
    alias.__file__ = _core.__file__
    alias.__spec__ = type(__spec__)(name, None, origin=_core.__file__)
    alias.__package__ = __name__
    sys.modules[name] = globals()["_safetensors_rust"] = alias


_register_alias()

# Names and their modules, which are imported on first access to keep the import short.
_LAZY = {
    "IntegrityError": "_checking.verify",
    "RangeReader": "_range_reader",
    "SafeWriter": "_saving.writer",
    "Summary": "_summary",
    "recover": "_saving.recovery",
    "safe_create": "_saving.writer",
    "specs_of": "_saving.specs",
    "summary": "_summary",
    "update_file": "_saving.update",
}


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> "Any":
    if name in _LAZY:
        import importlib

        found = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
        globals()[name] = found
        return found
    # The compiled module makes these classes when it first raises them; pickle looks them up here.
    if name.startswith("Safetensor"):
        from . import _core, _errors

        found = _errors.class_named(name, "Safetensor", _core._error_class)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

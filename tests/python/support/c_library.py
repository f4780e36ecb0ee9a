"""The C library of the CMake preset `dev`, for tests that call it."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "build" / "dev" / "libsafetensors_c.so"
BINDINGS = ROOT / "examples" / "ctypes" / "bindings.py"


def require():
    """Skips the calling module if the library is not built."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built: cmake --build --preset dev", allow_module_level=True)


def load():
    """Returns the library, as examples/ctypes binds it."""
    spec = importlib.util.spec_from_file_location("bindings", BINDINGS)
    bindings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bindings)
    return bindings.Library(str(LIBRARY))

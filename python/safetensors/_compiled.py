"""Loads the modules that are in the file of `_core`.

One file has the core, pybind11 and the C++ standard library once. Modules of their own create
classes and functions that a program may not need only when it imports them.
"""

import importlib.util
import sys

from . import _core


def load(name: str) -> None:
    """Puts the compiled module of this name into sys.modules."""
    spec = importlib.util.spec_from_file_location(name, _core.__file__)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

"""The compiled part of safetensors.weights: a second module in the file of `_core`.

One file has the core, pybind11 and the C++ standard library once.
"""

import importlib.util
import sys

from . import _core

_spec = importlib.util.spec_from_file_location(__name__, _core.__file__)
assert _spec is not None
assert _spec.loader is not None
sys.modules[__name__] = _module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

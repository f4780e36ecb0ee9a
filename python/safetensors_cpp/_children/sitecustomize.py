"""Makes `safetensors` this package in a Python process whose PYTHONPATH names this folder."""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

_here = os.path.dirname(__file__)
_package = os.path.join(os.path.dirname(_here), "_package")
sys.path[:] = [entry for entry in sys.path if entry not in (_here, _package)]
# An interpreter that cannot load the compiled module keeps its own package.
_core = os.path.join(_package, "safetensors", "_core")
if any(os.path.exists(_core + suffix) for suffix in EXTENSION_SUFFIXES):
    sys.path.insert(0, _package)

# Next, the sitecustomize that this one hides. If there is none, `site` ignores the ImportError.
del sys.modules[__name__]
__import__(__name__)

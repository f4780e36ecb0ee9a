"""Imports torch for this package.

PyInstaller, Nuitka and cx_Freeze follow import statements and literal names. They take this package
into each program, because any may write tensors of torch, but torch only into programs that import
it themselves.
"""

import importlib
import sys

__all__ = ["torch"]

_NAME = "torch"

torch = sys.modules.get(_NAME) or importlib.import_module(_NAME)

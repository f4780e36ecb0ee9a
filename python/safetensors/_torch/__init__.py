"""The implementation of `safetensors.torch`. The compiled module imports `transfer` when it loads
tensors to a device.

PyInstaller, Nuitka and cx_Freeze follow import statements and literal names. They take this package
into each program, because any may write tensors of torch, but torch only into programs that import
it themselves.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["AnyDevice", "torch"]

_NAME = "torch"

torch = sys.modules.get(_NAME) or importlib.import_module(_NAME)

AnyDevice = str | int | torch.device | None
"""A device as callers name it. An int is the index of a CUDA device, or of torch's current
accelerator; None is the CPU."""

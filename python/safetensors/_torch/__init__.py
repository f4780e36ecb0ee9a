"""The implementation of `safetensors.torch`. The compiled module imports `transfer` when it loads
tensors to a device."""

from __future__ import annotations

from ._module import torch

AnyDevice = str | int | torch.device | None
"""A device as callers name it. An int is the index of a CUDA device, or of torch's current
accelerator; None is the CPU."""

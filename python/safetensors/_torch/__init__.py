"""The implementation of `safetensors.torch`. Its modules import each other in one direction:

    load_into -> load_files -> wanted -> dtypes
                            -> devices
              -> overlaps
    save_file_async -> checks, dtypes
    save_files -> checks -> dtypes, shared_memory
    transfer -> devices, dtypes, pieces
    shared_memory -> dtypes
    placements

The compiled module imports `transfer` when it loads tensors to a device.
"""

from __future__ import annotations

from ._module import torch

AnyDevice = str | int | torch.device | None
"""A device as callers name it. An int is the index of a CUDA device, or of torch's current
accelerator; None is the CPU."""

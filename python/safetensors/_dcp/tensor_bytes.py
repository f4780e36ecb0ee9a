"""The bytes of tensors of torch, in pieces."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from .._torch.arrays import _to_ndarray

_MAX_NBYTES = 1 << 20


def bytes_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yields the tensor's bytes as a file stores them.

    What is not contiguous memory of the CPU is copied, at most 1 MiB at a time. An element of
    the last dimension is never divided.
    """
    tensor = tensor.detach()
    nbytes = tensor.numel() * tensor.element_size()
    is_plain = (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and sys.byteorder == "little"
    )
    if is_plain or nbytes <= _MAX_NBYTES or not tensor.dim():
        yield memoryview(_to_ndarray(tensor)[0])
        return
    rows = _MAX_NBYTES // (nbytes // len(tensor))
    for begin in range(0, len(tensor), max(rows, 1)):
        yield from bytes_of(tensor[begin : begin + rows] if rows > 1 else tensor[begin])

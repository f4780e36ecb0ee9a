"""What tensors of a file are in torch: their types and shapes."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

from .._core import SafetensorError, _dtypes

_TYPES: Dict[str, torch.dtype] = {
    code: vars(torch)[row["torch"]]
    for code, row in _dtypes().items()
    if row["torch"] in vars(torch)
}
"""From the type names of files to torch's types. `load` looks types up here, so that programs may
add to it."""

_SIZE: Dict[torch.dtype, int] = {dtype: dtype.itemsize for dtype in _TYPES.values()}
"""Bytes an element of each type takes in memory."""

Form = Tuple[torch.dtype, Tuple[int, ...]]


def form_of(meta: Any, index: Any = None) -> Form:
    """The type and shape that torch gives a tensor, or the part of it that `index` takes.

    Args:
        meta: what the file's header says of the tensor.
        index: what stands between brackets; None for the whole tensor.

    Raises:
        SafetensorError: torch has no such tensors.
        IndexError, TypeError, ValueError: what torch raises for the index.
    """
    dtype = _TYPES.get(meta.dtype)
    if dtype is None:
        raise SafetensorError(f"Dtype not understood: {meta.dtype}: torch has no such type")
    shape = list(meta.shape)
    if meta.dtype == "F4":  # torch packs two in a byte
        if not shape or shape[-1] % 2 != 0:
            raise SafetensorError(
                "f4_x2 dtype requires that the last dim be divisible by 2 in torch: got "
                f"{meta.shape}"
            )
        shape[-1] //= 2
    if index is not None:
        shape = list(torch.empty(shape, dtype=torch.uint8, device="meta")[index].shape)
    return dtype, tuple(shape)


def nbytes_of(form: Form) -> int:
    """Bytes that a tensor of this type and shape takes."""
    dtype, shape = form
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count

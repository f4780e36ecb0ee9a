"""The dtypes and shapes that torch gives tensors of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import SafetensorError, TensorSpec, _dtypes, _file_of, safe_open
from . import torch

if TYPE_CHECKING:
    from .._regions import SelectedPart

_TYPES: dict[str, torch.dtype] = {
    code: vars(torch)[row["torch"]]
    for code, row in _dtypes().items()
    if row["torch"] in vars(torch)
}
"""Maps the format's dtype names to torch's dtypes. `load` looks dtypes up here, so that programs
may add entries."""

_SIZE: dict[torch.dtype, int] = {dtype: dtype.itemsize for dtype in _TYPES.values()}
"""Bytes of one element of each dtype in memory."""

Form = tuple[torch.dtype, tuple[int, ...]]
"""A dtype and a shape."""


def form_of(meta: Any, part: SelectedPart | None = None) -> Form:
    """Returns the dtype and shape that torch gives a tensor, or a part of it.

    Args:
        meta: the tensor's entry in the file's header.
        part: None for the whole tensor.

    Raises:
        SafetensorError: torch cannot represent the tensor or the part.
    """
    dtype = _TYPES.get(meta.dtype)
    if dtype is None:
        from .._errors import failure  # safetensors.torch imports this module

        raise failure(
            "unsupported_dtype", f"Dtype not understood: {meta.dtype}: torch has no such type"
        )
    if meta.dtype == "F4":
        return dtype, _packed(meta.shape, part)
    return dtype, tuple(meta.shape if part is None else part.shape)


def _packed(whole: list[int], part: SelectedPart | None) -> tuple[int, ...]:
    """Returns the shape in torch of a tensor of F4, or of a part: its element is a byte of two."""
    from .._errors import failure

    if part is not None and (not whole or part.axes[-1] != [range(whole[-1])]):
        raise failure("invalid_argument", "a part of an F4 tensor must include the whole last axis")
    made = tuple(whole if part is None else part.shape)
    for shape in (whole, made):
        if not shape or shape[-1] % 2 != 0:
            raise failure(
                "unsupported_dtype",
                "f4_x2 dtype requires that the last dim be divisible by 2 in torch: got "
                f"{list(shape)}",
            )
    return (*made[:-1], made[-1] // 2)


def form_in(handle: safe_open, name: str, index: Any = None) -> Form:
    """Returns `form_of` a tensor of an open file, or of the part that an index selects.

    Raises:
        SafetensorError: as `form_of`. All errors name the tensor and the file.
        IndexError, TypeError, ValueError: as `SelectedPart`.
    """
    try:
        meta = handle.get_tensor_meta(name)
        if index is None:
            return form_of(meta)
        from .._regions import SelectedPart  # only for parts: safetensors.torch imports this module

        return form_of(meta, SelectedPart(index, meta.shape))
    except (SafetensorError, IndexError, TypeError, ValueError) as error:
        from .._errors import while_loading

        raise while_loading(error, name, _file_of(handle)) from error


def tensor_spec(tensor: torch.Tensor, address: int, nbytes: int) -> TensorSpec:
    """Returns the TensorSpec of a tensor whose bytes are at this address."""
    return TensorSpec(
        dtype=str(tensor.dtype).rpartition(".")[2],
        shape=tensor.shape,
        data_ptr=address,
        data_len=nbytes,
    )


def nbytes_of(form: Form) -> int:
    """Returns the bytes of a tensor of this dtype and shape."""
    dtype, shape = form
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count

"""Splits a part of a tensor into pieces that fit into a staging slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._core import TensorMeta

Piece = tuple[Any, int]
"""An index into the file's tensor, and the bytes that it selects."""

_Axis = Any  # an int, or a range of two or more indices


def pieces_of(meta: TensorMeta, part: Any, nbytes: int, limit: int) -> Iterator[Piece]:
    """Yields pieces that together make up a part of a tensor, in the order of its bytes.

    A piece has at most `limit` bytes, except where the part cannot be split: then it is one piece.

    Args:
        meta: the tensor in the file.
        part: an index into it; None for the whole tensor.
        nbytes: the bytes that `part` selects.
        limit: bytes; at least those of one element.
    """
    if nbytes <= limit:
        yield part, nbytes
        return
    # Two F4 elements share a byte, so that an index may begin inside one.
    axes = None if meta.dtype == "F4" else _axes(meta.shape, part)
    if axes is None:
        yield part, nbytes
    else:
        yield from _split(axes, 0, nbytes, limit)


def _axes(shape: Sequence[int], index: Any) -> list[_Axis] | None:
    """Returns the indices that `index` selects on each axis; None if it is not basic indexing.

    Only integers and slices are basic here: an ellipsis or None gives None as well.
    """
    items = list(index) if isinstance(index, tuple) else [] if index is None else [index]
    if any(type(item) is not slice and type(item) is not int for item in items):
        return None
    items += [slice(None)] * (len(shape) - len(items))
    return [range(size)[item] for size, item in zip(shape, items, strict=True)]


def _split(axes: list[_Axis], axis: int, nbytes: int, limit: int) -> Iterator[Piece]:
    """Splits along `axis`; all axes before it are single indices.

    Tensors are in row-major order, so that the pieces of the first axis follow each other in
    memory. A row that is itself above the limit is split along the next axis.
    """
    if nbytes <= limit:
        yield tuple(slice(a.start, a.stop, a.step) if type(a) is range else a for a in axes), nbytes
        return
    rows = axes[axis]
    if type(rows) is not range:
        yield from _split(axes, axis + 1, nbytes, limit)
        return
    row_nbytes = nbytes // len(rows)
    count = max(1, limit // row_nbytes)
    for begin in range(0, len(rows), count):
        part = rows[begin : begin + count]
        taken = [*axes[:axis], part if len(part) > 1 else part[0], *axes[axis + 1 :]]
        yield from _split(taken, axis + (len(part) == 1), len(part) * row_nbytes, limit)

"""Splits a part of a tensor into pieces that fit into a staging slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._regions import SelectedPart, index_of

if TYPE_CHECKING:
    from .._core import TensorMeta

Piece = tuple[Any, int]
"""An index into the file's tensor, and the bytes that it selects."""


def pieces_of(meta: TensorMeta, part: Any, nbytes: int, limit: int) -> Iterator[Piece]:
    """Yields pieces that together make up a part of a tensor, in the order of its bytes.

    A piece has at most `limit` bytes, except where the part cannot be split: then it is one piece.

    Args:
        meta: the tensor in the file.
        part: an index into it, as for `SelectedPart`; None for the whole tensor.
        nbytes: the bytes that `part` selects.
        limit: bytes; at least those of one element.
    """
    if nbytes <= limit:
        yield part, nbytes
        return
    axes = SelectedPart(part, meta.shape).axes
    # Two F4 elements share a byte, so that an index may begin inside one.
    if meta.dtype == "F4" or any(len(ranges) != 1 for ranges in axes):
        yield part, nbytes
    else:
        yield from _split([rows for (rows,) in axes], 0, nbytes, limit)


def _split(axes: list[range], axis: int, nbytes: int, limit: int) -> Iterator[Piece]:
    """Splits along `axis`; all axes before it are single indices.

    Tensors are in row-major order, so that the pieces of the first axis follow each other in
    memory. A row that is itself above the limit is split along the next axis.
    """
    if nbytes <= limit:
        yield tuple(index_of([rows]) for rows in axes), nbytes
        return
    rows = axes[axis]
    row_nbytes = nbytes // len(rows)
    count = max(1, limit // row_nbytes)
    for begin in range(0, len(rows), count):
        part = rows[begin : begin + count]
        taken = [*axes[:axis], part, *axes[axis + 1 :]]
        yield from _split(taken, axis + (len(part) == 1), len(part) * row_nbytes, limit)

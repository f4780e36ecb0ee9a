"""What an index selects of a tensor: shapes, and regions as indices into the tensor. The compiled
module decides what is read for an index. Imports no framework."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

Bounds = tuple[tuple[int, int], ...]
"""A region: for each axis its first index, and the one after its last."""


class SelectedPart:
    """A part of a tensor.

    Attributes:
        shape: the part's.
        axes: for each axis of the tensor the indices that the part has of it, as ranges that follow
            one another. Their steps are positive.
        resolved: the part as an index of integers, slices, None and lists of slices, whose bounds
            are not negative; None for the whole tensor. `get_slice` takes a list of slices for
            ranges, but one of integers for the framework's index.
        is_whole: whether it is the tensor.
    """

    def __init__(self, part: Any, shape: Sequence[int]) -> None:
        """Resolves the part.

        Args:
            part: an index of integers, slices, `...`, None and lists of integers and slices; an
                object with a method `part(shape)` that returns one; or None for all.
            shape: the tensor's.

        Raises:
            IndexError: an integer is out of bounds, or there are more indices than axes.
            TypeError, ValueError: the index is not one of these, or has a step below 1.
        """
        if hasattr(part, "part"):
            part = part.part(tuple(shape))
        self._whole = [[range(size)] for size in shape]
        self.axes: list[list[range]] = []
        self._kept: list[int | None] = []  # the tensor's axis of each axis; None for a new one
        index: list[Any] = []
        for item in _items(part, len(shape)):
            if item is None:
                self._kept.append(None)
                index.append(None)
                continue
            axis = len(self.axes)
            ranges = _ranges(item, shape[axis])
            self.axes.append(ranges)
            if _is_integer(item):
                index.append(ranges[0].start)
            else:
                self._kept.append(axis)
                index.append(index_of(ranges))
        self.shape = tuple(
            1 if axis is None else sum(map(len, self.axes[axis])) for axis in self._kept
        )
        self.is_whole = self.axes == self._whole and self._kept == [*range(len(shape))]
        self.resolved = None if self.is_whole else tuple(index)

    def index(self, region: Bounds) -> Any:
        """Returns the index into the tensor of a region of the part; None for the whole tensor.

        Its elements are those of the region in the same order, but it keeps all of the tensor's
        axes, and has no new ones.
        """
        taken = list(self.axes)
        for axis, (begin, end) in zip(self._kept, region, strict=True):
            if axis is not None:
                taken[axis] = cut(taken[axis], begin, end)
        if taken == self._whole:
            return None
        return tuple(map(index_of, taken))


def cut(ranges: Iterable[range], begin: int, end: int) -> list[range]:
    """Returns the indices from `begin` to `end` of ranges that follow one another."""
    found = []
    for each in ranges:
        part = each[max(begin, 0) : max(end, 0)]
        if part:
            found.append(part)
        begin -= len(each)
        end -= len(each)
    return found


def index_of(ranges: Sequence[range]) -> slice | list[slice]:
    """Returns the item of an index that selects ranges of an axis."""
    slices = [slice(r.start, r.stop, None if r.step == 1 else r.step) for r in ranges]
    return slices[0] if len(slices) == 1 else slices or slice(0, 0)


def bounds_of(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """Returns the bounds of slices with step 1, one for each axis."""
    return tuple(item.indices(size)[:2] for item, size in zip(index, shape, strict=True))


def ends_within_byte(shape: Sequence[int], bits: int) -> bool:
    """Returns whether rows of elements with this many bits end within a byte, so that neither rows
    nor parts of them have bytes of their own."""
    return bool(shape) and shape[-1] * bits % 8 != 0


def byte_shape(shape: Sequence[int], bits: int) -> tuple[int, ...]:
    """Returns a shape in elements of this many bits with the last axis in bytes, rounded up."""
    return (*shape[:-1], -(-shape[-1] * bits // 8)) if shape else (bits // 8,)


def sizes_of(region: Bounds) -> tuple[int, ...]:
    """Returns the shape of a region."""
    return tuple(end - begin for begin, end in region)


class Grid(NamedTuple):
    """Cells of a tensor whose axes are divided evenly."""

    shape: list[int]
    """The tensor's, with two axes for each of its own: the cells, and the elements of a cell."""
    cells: tuple[Any, ...]
    """The wanted cells, as an index into such a tensor."""
    counts: list[int]
    """How many cells are wanted along each axis."""


def grid_of(regions: Collection[Bounds], shape: Sequence[int]) -> Grid | None:
    """Returns the grid whose wanted cells are the regions; None if they are not cells of one.

    Args:
        regions: at least one; none is empty.
        shape: the tensor's.
    """
    axes = [sorted({region[axis] for region in regions}) for axis in range(len(shape))]
    if math.prod(map(len, axes)) != len(regions):
        return None
    grid = Grid([], (), [])
    for size, cells in zip(shape, axes, strict=True):
        length = cells[0][1] - cells[0][0]
        if size % length or any(b % length or e - b != length for b, e in cells):
            return None
        grid.shape.extend((size // length, length))
        grid.counts.append(len(cells))
        grid = grid._replace(cells=(*grid.cells, [b // length for b, _ in cells], slice(None)))
    return grid


def _items(part: Any, rank: int) -> list[Any]:
    """Returns an item for each axis of the tensor, in their order, and None for each new axis."""
    items = part if isinstance(part, tuple) else () if part is None else (part,)
    used = sum(item is not None and item is not ... for item in items)
    dots = sum(item is ... for item in items)
    if used > rank or dots > 1:
        raise IndexError(f"too many indices for a tensor with {rank} axes: {part}")
    found: list[Any] = []
    for item in items if dots else (*items, ...):
        found += [slice(None)] * (rank - used) if item is ... else [item]
    return found


def _is_integer(item: Any) -> bool:
    """Returns whether an item is an integer: no bool, and no array of bools or with axes."""
    return (
        hasattr(item, "__index__")
        and not isinstance(item, bool)
        and getattr(item, "shape", ()) == ()
        and "bool" not in str(getattr(item, "dtype", ""))
    )


def _ranges(item: Any, size: int) -> list[range]:
    """Returns the indices that an item selects on an axis."""
    if isinstance(item, list):
        return [each for one in item for each in _range(one, size)]
    return _range(item, size)


def _range(item: Any, size: int) -> list[range]:
    """Returns the indices that a slice or integer selects, as one range."""
    if isinstance(item, slice):
        if item.step is not None and item.step < 1:
            raise ValueError(f"the step of a part is positive, found {item.step}")
        return [range(size)[item]]
    if not _is_integer(item):
        raise TypeError(
            "the index of a part consists of integers, slices and lists of them, not of "
            f"{type(item).__name__}"
        )
    number = operator.index(item)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for an axis of size {size}")
    return [range(number % size, number % size + 1)]

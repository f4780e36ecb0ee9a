"""Parts of tensors as ranges of bytes, which ranks can compare."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .._regions import ends_within_byte

Ranges = tuple[tuple[int, int], ...]
"""Pairs of begin and end on one axis: ascending, disjoint, not adjacent, not empty."""

Axes = tuple[Ranges, ...]
"""Ranges of each axis, the last one in bytes. They select the product."""


class Unusual(enum.Enum):
    UNUSUAL = "UNUSUAL"


UNUSUAL = Unusual.UNUSUAL
"""A part that is no `Axes`, such as one with steps or in another order."""

Taken = Axes | Unusual | None
"""What a rank takes of a tensor; None: nothing."""

# Shorter rows are never divided, so that parts of F4 tensors include the whole last axis.
MAX_ROW_NBYTES = 256 << 10


def taken_of(index: Any, shape: Sequence[int], bits: int) -> Taken:
    """Returns the bytes that an index of `_torch.parts.index_of` selects.

    Args:
        index: integers, slices, `...`, None and lists of slices; it fits the shape.
        shape: the tensor's, in elements.
        bits: of an element.
    """
    sizes = list(shape) or [1]
    if bits % 8:  # such rows cannot be divided
        row = sizes[-1] * bits // 8
        if ends_within_byte(sizes, bits) or row > MAX_ROW_NBYTES or len(sizes) == 1:
            return UNUSUAL
    items = _items(index, len(shape))
    if items is None:
        return UNUSUAL
    axes = []
    for item, size in zip(items + [slice(None)] * (len(sizes) - len(items)), sizes, strict=True):
        ranges = _ranges(item, size)
        if ranges is None:
            return UNUSUAL
        axes.append(ranges)
    if any(edge * bits % 8 for pair in axes[-1] for edge in pair):
        return UNUSUAL
    axes[-1] = tuple((begin * bits // 8, end * bits // 8) for begin, end in axes[-1])
    return tuple(axes)


def index_of_axes(axes: Axes, shape: Sequence[int], bits: int) -> tuple[Any, ...]:
    """Returns the index that selects these bytes of a tensor: a slice or a list of slices for each
    axis. It is the inverse of `taken_of`, but integers become slices.

    Args:
        axes: of the tensor.
        shape: the tensor's, in elements.
        bits: of an element.
    """
    if not shape:
        return ()
    scales = [8] * (len(shape) - 1) + [bits]
    found: list[Any] = []
    for ranges, scale in zip(axes, scales, strict=True):
        slices = [slice(begin * 8 // scale, end * 8 // scale) for begin, end in ranges]
        found.append(slices[0] if len(slices) == 1 else slices or slice(0, 0))
    return tuple(found)


def length(ranges: Ranges) -> int:
    """Returns how many indices the ranges have."""
    return sum(end - begin for begin, end in ranges)


def nbytes_of(axes: Axes) -> int:
    """Returns how many bytes are selected."""
    return math.prod(map(length, axes))


def union(several: Iterable[Ranges]) -> Ranges:
    """Returns the ranges that hold each index of any of them."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(pair for ranges in several for pair in ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


def clip(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Returns what of the ranges is from `begin` to `end`, numbered from `begin`."""
    return tuple(
        (max(first, begin) - begin, min(last, end) - begin)
        for first, last in ranges
        if first < end and last > begin
    )


def positions(ranges: Ranges, within: Ranges) -> Ranges:
    """Returns the ranges' positions among the indices of `within`, which contains them."""
    found: list[Ranges] = []
    before = 0
    for begin, end in within:
        found.append(tuple((a + before, b + before) for a, b in clip(ranges, begin, end)))
        before += end - begin
    return union(found)


def part(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Returns the ranges of the indices at positions `begin` to `end`: `positions`' inverse."""
    found: list[tuple[int, int]] = []
    before = 0
    for first, last in ranges:
        low, high = max(begin, before), min(end, before + last - first)
        if low < high:
            found.append((low - before + first, high - before + first))
        before += last - first
    return tuple(found)


def _items(index: Any, ndim: int) -> list[Any] | None:
    """Returns an item for each axis but the last ones, which are whole; None if it is unusual."""
    items = [each for each in (index if isinstance(index, tuple) else (index,)) if each is not None]
    count = sum(each is Ellipsis for each in items)
    if count == 1:
        at = next(at for at, each in enumerate(items) if each is Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
    return items if count <= 1 and len(items) <= ndim else None


def _ranges(item: Any, size: int) -> Ranges | None:
    """Returns the ranges of an axis that an item selects; None if it is unusual."""
    if isinstance(item, list):
        found: list[tuple[int, int]] = []
        for each in item:
            ranges = _ranges(each, size) if isinstance(each, slice) else None
            if ranges is None:
                return None
            found += ranges
        merged = union([tuple(found)])
        is_ascending = all(a[1] <= b[0] for a, b in itertools.pairwise(found))
        return merged if is_ascending else None
    if isinstance(item, slice):
        taken = range(*item.indices(size))
        if len(taken) > 1 and taken.step != 1:
            return None
        return ((taken[0], taken[-1] + 1),) if taken else ()
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        return None
    number = item.__index__()
    number += size if number < 0 else 0
    return ((number, number + 1),) if 0 <= number < size else None

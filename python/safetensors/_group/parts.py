"""Parts of tensors as ranges of bytes, which ranks can compare."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .._regions import SelectedPart, cut, ends_within_byte, index_of

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
    """Returns the bytes that an index selects.

    Args:
        index: as for `SelectedPart`.
        shape: the tensor's, in elements.
        bits: of an element.
    """
    sizes = list(shape) or [1]
    if bits % 8:  # such rows cannot be divided
        row = sizes[-1] * bits // 8
        if ends_within_byte(sizes, bits) or row > MAX_ROW_NBYTES or len(sizes) == 1:
            return UNUSUAL
    axes = []
    for selected in SelectedPart(index, shape).axes or [[range(1)]]:
        ranges = _ranges(selected)
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
        elements = [range(begin * 8 // scale, end * 8 // scale) for begin, end in ranges]
        found.append(index_of(elements))
    return tuple(found)


def length(ranges: Ranges) -> int:
    """Returns how many indices the ranges have."""
    return sum(end - begin for begin, end in ranges)


def nbytes_of(axes: Axes) -> int:
    """Returns how many bytes are selected."""
    return math.prod(map(length, axes))


def union(several: Iterable[Iterable[tuple[int, int]]]) -> Ranges:
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
    found = cut(itertools.starmap(range, ranges), begin, end)
    return tuple((each.start, each.stop) for each in found)


def _ranges(selected: Sequence[range]) -> Ranges | None:
    """Returns the indices of an axis as ranges; None if they are unusual."""
    if any(len(each) > 1 and each.step != 1 for each in selected):
        return None
    found = [(each.start, each[-1] + 1) for each in selected if each]
    is_ascending = all(a[1] <= b[0] for a, b in itertools.pairwise(found))
    return union([found]) if is_ascending else None

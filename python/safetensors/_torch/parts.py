"""Parts of tensors as indices, and their shapes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ._module import torch


def index_of(part: Any, shape: Sequence[int]) -> Any:
    """Returns the index of a part, in which lists hold slices, not integers: as such they are
    ranges for `get_slice`, too.

    Args:
        part: an index, an object with a method `part(shape)` that returns one, or None for all.
        shape: the tensor's, in elements of the file.

    Raises:
        IndexError: an integer in a list is out of bounds.
    """
    if part is None or type(part) is slice:
        return part
    if hasattr(part, "part"):
        part = part.part(tuple(shape))
    items = part if isinstance(part, tuple) else (part,)
    if not any(isinstance(item, list) for item in items):
        return part
    found = list(items)
    for at, axis in _axes(items, len(shape)):
        if isinstance(items[at], list):
            size = shape[axis] if axis < len(shape) else 0
            found[at] = [_range(each, size) for each in items[at]]
    return tuple(found)


def shape_of(index: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of what an index of `index_of` selects.

    Raises:
        IndexError, TypeError, ValueError: torch refuses the index.
    """
    items = index if isinstance(index, tuple) else (index,)
    sizes, found = list(shape), list(items)
    for at, axis in _axes(items, len(shape)):
        if isinstance(items[at], list) and axis < len(shape):
            ranges = [each.indices(sizes[axis]) for each in items[at] if isinstance(each, slice)]
            sizes[axis] = sum(len(range(*each)) for each in ranges)
            found[at] = slice(None)
    empty = torch.empty(sizes, dtype=torch.uint8, device="meta")
    return tuple(empty[tuple(found)].shape)


def _axes(items: Sequence[Any], count: int) -> list[tuple[int, int]]:
    """Returns the position and the axis of each item that takes one of `count` axes."""
    used = sum(item is not None and item is not ... for item in items)
    found, axis = [], 0
    for at, item in enumerate(items):
        if item is ...:
            axis += count - used
        elif item is not None:
            found.append((at, axis))
            axis += 1
    return found


def _range(item: Any, size: int) -> Any:
    """Returns an integer in a list as a slice of one element, and other items as they are."""
    if isinstance(item, (bool, slice)) or not hasattr(item, "__index__"):
        return item
    number = operator.index(item)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for an axis of size {size}")
    return slice(number, number + 1 or None)

"""The tree of the dotted parts of names, in which siblings that are alike are one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .. import _extra
from .._core import safe_open

Listed = tuple[str, str, Sequence[int], int]
"""A tensor to list: name, type, shape, bytes."""


class Total(NamedTuple):
    """The sums of the tensors of a type."""

    type: str
    tensors: int
    elements: int
    nbytes: int


class Row(NamedTuple):
    """A tensor, or all tensors whose names begin alike; or several such that are alike."""

    first: str
    """The parts of the name below those of the row above."""
    last: str
    """The same, of the last one that is alike."""
    alike: int
    type: str | None
    """None for a group of tensors, as is the shape."""
    shape: tuple[int, ...] | None
    tensors: int
    """The sums of all that are alike."""
    elements: int
    nbytes: int
    rows: list[Row]
    """The rows of the first one; empty if they are not shown."""

    @property
    def label(self) -> str:
        return self.first if self.alike == 1 else f"{self.first} … {self.last}"


class Outline(NamedTuple):
    """The tree of some tensors, and their sums by type, the one with the most bytes first."""

    types: list[Total]
    rows: list[Row]
    omitted: int
    """Tensors of rows at the end that exceed the limit."""

    @property
    def tensors(self) -> int:
        return sum(each.tensors for each in self.types)

    @property
    def elements(self) -> int:
        return sum(each.elements for each in self.types)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.types)


def outline_of(
    tensors: Iterable[safe_open | Listed], rows: int | None = None, depth: int | None = None
) -> Outline:
    """Returns the tree of tensors, and of all tensors of handles.

    Args:
        rows: the most rows. The largest groups show theirs first; others stay summed up.
        depth: the most levels.
    """
    types, made, omitted = _extra._outline(list(tensors), rows, depth)
    return Outline([Total(*each) for each in types], list(map(_row, made)), omitted)


def _row(given: tuple[Any, ...]) -> Row:
    return Row._make((*given[:-1], [_row(each) for each in given[-1]]))

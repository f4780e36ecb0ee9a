"""A sequence of which many values are equal, such as the shapes of a model's tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)


class Column(Generic[V]):
    """A sequence of values, each of which is there once: what is done with the values, and what
    ranks tell each other, does not grow with the length.

    Attributes:
        values: the distinct values.
        numbers: the position in `values` of each item of the sequence.
    """

    __slots__ = ("numbers", "values")

    def __init__(self, values: Sequence[V], numbers: Sequence[int]) -> None:
        self.values = values
        self.numbers = numbers

    @classmethod
    def of(cls, items: Iterable[V]) -> Column[V]:
        """Returns the column of these items."""
        found: dict[V, int] = {}
        numbers = [found.setdefault(each, len(found)) for each in items]
        return cls(list(found), numbers)

    def items(self) -> list[V]:
        """Returns the sequence."""
        return [self.values[number] for number in self.numbers]

"""Measures how far the values of two tensors are apart, in pieces. Needs NumPy."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .decode import Array
from .model import Placed
from .output import Advance

_PIECE = 1 << 20
"""The number of values that are compared at a time."""


class Difference(NamedTuple):
    """How far the values of two tensors of one shape are apart, computed in float64.

    Which values differ is decided in their own types: integers of 64 bits may have equal floats.
    """

    elements: int
    differ: int
    """The number of values that differ. NaN is equal to NaN."""
    largest: float
    """max |a-b|; infinite or NaN if a value is not finite and the other one differs from it."""
    mean: float
    """The mean of |a-b|."""
    rms: float
    """sqrt(mean of |a-b|^2)."""
    relative: float | None
    """sqrt(sum |a-b|^2 / sum |a|^2); None if values differ and all of the first are 0."""
    cosine: float | None
    """sum a b / sqrt(sum |a|^2 sum |b|^2) of the finite values; None if a tensor has only zeros."""

    def is_within(self, tolerance: float) -> bool:
        """Returns whether the relative difference is at most this. One that is not known is not."""
        return self.differ == 0 or (self.relative is not None and self.relative <= tolerance)


def measure(a: Placed, b: Placed, advance: Advance) -> Difference:
    """Compares two tensors of equal shapes. Reads each once."""
    elements = differ = 0
    largest = total = squares = of_a = of_b = product = 0.0
    with np.errstate(all="ignore"):
        for x, y in _in_step(_values(a, advance), _values(b, advance)):
            # Equal infinities would differ by NaN, and NaN from itself.
            unequal = (x != y) & ~((x != x) & (y != y))
            left, right = _wide(x), _wide(y)
            least = 1.0 if x.dtype.kind in "iu" and y.dtype.kind in "iu" else 0.0
            distance = np.where(unequal, np.maximum(np.abs(left - right), least), 0.0)
            elements += left.size
            differ += int(np.count_nonzero(unequal))
            largest = float(np.fmax(largest, distance.max(initial=0.0)))
            if np.isnan(distance).any():
                largest = math.nan
            total += float(distance.sum())
            squares += float(np.square(distance).sum())
            finite = np.isfinite(left) & np.isfinite(right)
            left, right = left[finite], right[finite]
            of_a += float(np.vdot(left, left).real)
            of_b += float(np.vdot(right, right).real)
            product += float(np.vdot(left, right).real)
    count = max(elements, 1)
    norms = math.sqrt(of_a) * math.sqrt(of_b)
    return Difference(
        elements,
        differ,
        largest,
        total / count,
        math.sqrt(squares / count),
        _ratio(math.sqrt(squares), math.sqrt(of_a)),
        product / norms if norms else None,
    )


def _ratio(distance: float, norm: float) -> float | None:
    if distance == 0:
        return 0.0
    return distance / norm if norm else None


def _values(placed: Placed, advance: Advance) -> Iterator[Array]:
    for values, nbytes in placed.file.values(placed.tensor):
        for begin in range(0, values.size, _PIECE):
            yield values[begin : begin + _PIECE]
        advance(nbytes)


def _wide(values: Array) -> Array:
    """Returns the values as float64; complex ones as complex numbers of two of them."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _in_step(a: Iterator[Array], b: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Yields pairs of equal length of the values of both, which have equally many in all."""
    left = right = np.empty(0)
    while True:
        left = left if left.size else next(a, left)
        right = right if right.size else next(b, right)
        count = min(left.size, right.size)
        if count == 0:
            return
        yield left[:count], right[:count]
        left, right = left[count:], right[count:]

"""Where the parts of a tensor are in its bytes. Pure functions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .._regions import byte_shape

Sizes = tuple[int, ...]
"""The size of a tensor in each dimension, the last one in bytes. There is at least one."""


class Box(NamedTuple):
    """A part of a tensor, in bytes in the last dimension."""

    offsets: Sizes
    sizes: Sizes


def box(offsets: Sequence[int], shape: Sequence[int], bits: int) -> Box:
    """Returns the part with this shape that begins at these elements.

    Requires: no row of either ends within a byte.
    """
    return Box(byte_shape(offsets, bits) if offsets else (0,), byte_shape(shape, bits))


def strides(sizes: Sizes) -> list[int]:
    """Returns the bytes from one index to the next, in each dimension."""
    found = [1]
    for size in reversed(sizes[1:]):
        found.append(found[-1] * size)
    return found[::-1]


def runs(whole: Sizes, part: Box) -> tuple[Iterator[int], int]:
    """Returns where the runs of a part begin in the bytes of the whole, and the bytes of each.

    With `part` = Box((1, 2), (2, 3)) of `whole` = (3, 6):

        . . . . . .
        . . x x x .     a run of 3 bytes at 8
        . . x x x .     a run of 3 bytes at 14
    """
    if 0 in part.sizes:
        return iter(()), 0
    steps = strides(whole)
    # All dimensions after the last that the part does not fill are contiguous with it.
    last = max((d for d in range(len(whole)) if part.sizes[d] != whole[d]), default=0)
    starts: Iterable[int] = [sum(o * s for o, s in zip(part.offsets, steps, strict=True))]
    for dim in range(last):
        starts = _spread(starts, steps[dim], part.sizes[dim])
    return iter(starts), part.sizes[last] * steps[last]


def _spread(starts: Iterable[int], step: int, count: int) -> Iterator[int]:
    for start in starts:
        yield from range(start, start + count * step, step)


def fits(whole: Sizes, part: Box) -> bool:
    """Returns whether the part is inside the whole."""
    return len(whole) == len(part.offsets) == len(part.sizes) and all(
        o >= 0 and s >= 0 and o + s <= w
        for o, s, w in zip(part.offsets, part.sizes, whole, strict=True)
    )


class _Measure(dict[int, int]):
    """Gives each index of a dimension a random number, and so the space between two of them."""

    prime = (1 << 61) - 1
    _random = random.Random()  # seeded by the system, so that no file can be made for it

    def __missing__(self, index: int) -> int:
        found = self[index] = self._random.randrange(self.prime)
        return found


def fill(whole: Sizes, parts: Iterable[Box]) -> bool:
    """Returns whether parts inside the whole are all of it, each byte once.

    Takes time in proportion to the parts: comparing them with each other would take its square. By
    a measure that is random in each dimension, parts that fill the whole once have together the
    measure of the whole. Both are polynomials of the random numbers, and those of other parts
    differ, so that the values are equal with a probability of at most dimensions / 2**61 (Schwartz
    and Zippel).
    """
    measures = [_Measure() for _ in whole]

    def measure(part: Box) -> int:
        product = 1
        for at, begin, size in zip(measures, *part, strict=True):
            product = product * (at[begin + size] - at[begin]) % _Measure.prime
        return product

    everything = Box((0,) * len(whole), whole)
    return (sum(map(measure, parts)) - measure(everything)) % _Measure.prime == 0


def overlapping(parts: Sequence[Box], most: int = 1_000_000) -> tuple[int, int] | None:
    """Returns the indices of two parts that overlap; None if there are none, or if they are not
    found by `most` comparisons."""
    filled = [i for i, part in enumerate(parts) if 0 not in part.sizes]
    if not filled:
        return None
    # Sweeps along the dimension that separates most parts: few are open at a time.
    dim = max(
        range(len(parts[filled[0]].sizes)), key=lambda d: len({parts[i].offsets[d] for i in filled})
    )
    filled.sort(key=lambda i: parts[i].offsets[dim])
    current: list[int] = []
    for i in filled:
        begin = parts[i].offsets[dim]
        most -= len(current)
        if most < 0:
            return None
        current = [j for j in current if parts[j].offsets[dim] + parts[j].sizes[dim] > begin]
        for j in current:
            if _meet(parts[i], parts[j]):
                return j, i
        current.append(i)
    return None


def _meet(a: Box, b: Box) -> bool:
    """Returns whether two parts have a byte in common."""
    return all(
        max(x, y) < min(x + s, y + t)
        for x, s, y, t in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
    )


def blocks(whole: Sizes, most: int) -> Iterator[Box]:
    """Divides a tensor into contiguous parts of at most `most` bytes, in order.

    A part has one index in the first dimensions, a range in the next, and all of the others.
    """
    if 0 in whole:
        return
    steps = strides(whole)
    dim = next(d for d in range(len(whole)) if steps[d] <= most)
    count = max(1, most // steps[dim])
    zeros = (0,) * (len(whole) - dim - 1)
    for first in itertools.product(*map(range, whole[:dim])):
        for begin in range(0, whole[dim], count):
            rows = min(count, whole[dim] - begin)
            yield Box((*first, begin, *zeros), (*(1,) * dim, rows, *whole[dim + 1 :]))


def common(a: Box, b: Box) -> Box | None:
    """Returns the part of both, or None."""
    if not _meet(a, b):
        return None
    begin = tuple(map(max, a.offsets, b.offsets))
    ends = zip(a.offsets, a.sizes, b.offsets, b.sizes, begin, strict=True)
    return Box(begin, tuple(min(x + s, y + t) - o for x, s, y, t, o in ends))


def relative(part: Box, outer: Box) -> Box:
    """Returns a part of a box with offsets from where that box begins."""
    return Box(tuple(a - b for a, b in zip(part.offsets, outer.offsets, strict=True)), part.sizes)


def nbytes(sizes: Sizes) -> int:
    return math.prod(sizes)

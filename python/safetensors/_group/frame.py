"""One tensor and what each rank takes of it, cut into blocks of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .parts import MAX_ROW_NBYTES, Axes, Ranges, clip, length, nbytes_of, part, positions, union

# Along the last axis, blocks begin at multiples of this, so that no element is divided.
_ALIGNMENT = 64


class Block(NamedTuple):
    """Rows of a frame that some rank takes: those at positions `begin` to `end` among the rows of
    the union of all parts."""

    lead: tuple[int, ...]
    begin: int
    end: int


class Frame:
    """A tensor's bytes with few axes: those that every part takes whole are joined to the ones
    before them.

        what ranks take of [experts, hidden, columns]      the frame's axes
        all                                                [bytes]
        parts of the columns                               [experts * hidden, columns]
        parts of the hidden axis                           [experts, hidden * columns]

    One axis has the rows. Axes before it are the lead: an index of each selects a slab of rows.
    There is a lead only where a row would be too long, see MAX_ROW_NBYTES.

    A block is dense: its rows, with the union of the parts on the axes after the rows. What a rank
    takes of a block is one stretch of its local tensor.
    """

    def __init__(self, shape: Sequence[int], taken: Sequence[Axes | None]) -> None:
        """
        Args:
            shape: of the tensor, the last axis in bytes.
            taken: what each rank takes; None or without bytes: nothing. At least one takes some.
        """
        self._shape = tuple(shape)
        takers = {rank: axes for rank, axes in enumerate(taken) if axes and nbytes_of(axes)}
        heads = [
            axis
            for axis, size in enumerate(shape)
            if axis == 0 or any(axes[axis] != ((0, size),) for axes in takers.values())
        ]
        self._groups = list(zip(heads, [*heads[1:], len(shape)], strict=True))
        scales = [math.prod(shape[first + 1 : last]) for first, last in self._groups]
        self._taken: dict[int, Axes] = {
            rank: tuple(
                tuple((begin * scale, end * scale) for begin, end in axes[head])
                for head, scale in zip(heads, scales, strict=True)
            )
            for rank, axes in takers.items()
        }
        self.union: Axes = tuple(map(union, zip(*self._taken.values(), strict=True)))
        self._rows = 0
        while self.row_nbytes > MAX_ROW_NBYTES:
            self._rows += 1
        self.count = length(self.union[self._rows])
        self._positions = {
            rank: tuple(map(positions, axes, self.union)) for rank, axes in self._taken.items()
        }

    @property
    def row_nbytes(self) -> int:
        """The bytes of a row of a block."""
        return nbytes_of(self.union[self._rows + 1 :])

    @property
    def unit(self) -> int:
        """How many rows are not divided."""
        first, last = self._groups[self._rows]
        if last < len(self._shape):
            return 1
        is_joined = last - first > 1 and self._shape[-1] <= MAX_ROW_NBYTES
        return self._shape[-1] if is_joined else _ALIGNMENT

    @property
    def takers(self) -> frozenset[int]:
        """The ranks that take some of it."""
        return frozenset(self._taken)

    def nbytes(self, rank: int) -> int:
        """Returns the bytes that a rank takes."""
        return nbytes_of(self._taken[rank]) if rank in self._taken else 0

    def row_nbytes_of(self, rank: int) -> int:
        """Returns the bytes that a rank takes of a row, if it takes the row."""
        return nbytes_of(self._taken[rank][self._rows + 1 :])

    def leads(self) -> Iterator[tuple[int, ...]]:
        """Yields the slabs that some rank takes rows of."""
        axes = self.union[: self._rows]
        for lead in itertools.product(
            *(itertools.chain(*(range(*pair) for pair in ranges)) for ranges in axes)
        ):
            if any(self._lead_position(rank, lead) is not None for rank in self._taken):
                yield lead

    def block_nbytes(self, block: Block) -> int:
        """Returns the bytes of a block."""
        return (block.end - block.begin) * self.row_nbytes

    def block_shape(self, block: Block) -> tuple[int, ...]:
        """Returns the shape of a block, of which `selection` has the axes."""
        return (block.end - block.begin, *map(length, self.union[self._rows + 1 :]))

    def share(self, rank: int, block: Block) -> tuple[int, int]:
        """Returns the stretch of a rank's local tensor that comes from a block, as offset and
        length in bytes; (0, 0): none."""
        slab = self._lead_position(rank, block.lead) if rank in self._taken else None
        if slab is None:
            return 0, 0
        rows = self._positions[rank][self._rows]
        count = length(clip(rows, block.begin, block.end))
        first = slab * length(rows) + length(clip(rows, 0, block.begin))
        nbytes = self.row_nbytes_of(rank)
        return (first * nbytes, count * nbytes) if count else (0, 0)

    def selection(self, rank: int, block: Block) -> Axes:
        """Returns what a rank takes of a block, if its share is not empty."""
        axes = self._positions[rank][self._rows :]
        return (clip(axes[0], block.begin, block.end), *axes[1:])

    def axes_of(self, block: Block) -> list[Axes]:
        """Returns the parts of the tensor that make up a block, in the order of its bytes."""
        rows = part(self.union[self._rows], block.begin, block.end)
        inner: Axes = tuple(
            axis
            for (first, last), ranges in zip(self._groups, self.union, strict=True)
            if first >= self._groups[self._rows][1]
            for axis in self._split(first, last, ranges)
        )
        lead: Axes = ()
        for index, (first, last) in zip(block.lead, self._groups, strict=False):
            (axes,) = _stretch(self._shape[first:last], index, index + 1)
            lead += axes
        first, last = self._groups[self._rows]
        return [
            lead + axes + inner
            for begin, end in rows
            for axes in _stretch(self._shape[first:last], begin, end)
        ]

    def _split(self, first: int, last: int, ranges: Ranges) -> Axes:
        """Returns the ranges of joined axes, of which all but the first one are whole."""
        whole = [((0, size),) for size in self._shape[first + 1 : last]]
        scale = math.prod(self._shape[first + 1 : last])
        return (tuple((begin // scale, end // scale) for begin, end in ranges), *whole)

    def _lead_position(self, rank: int, lead: tuple[int, ...]) -> int | None:
        """Returns the number of the slab among those of a rank; None: it takes nothing of it."""
        found = 0
        for index, ranges in zip(lead, self._taken[rank], strict=False):
            if not clip(ranges, index, index + 1):
                return None
            found = found * length(ranges) + length(clip(ranges, 0, index))
        return found


def _stretch(shape: Sequence[int], begin: int, end: int) -> list[Axes]:
    """Returns the products of ranges that follow one another from `begin` to `end` in a dense array
    of this shape."""
    if len(shape) == 1:
        return [((((begin, end)),),)]
    size = math.prod(shape[1:])
    whole: Axes = tuple(((0, each),) for each in shape[1:])
    found: list[Axes] = []
    while begin < end:
        row, at = divmod(begin, size)
        if at == 0 and end - begin >= size:
            last = end // size
            found.append((((row, last),), *whole))
            begin = last * size
        else:
            stop = min(end, (row + 1) * size)
            inner = _stretch(shape[1:], at, stop - row * size)
            found += [(((row, row + 1),), *axes) for axes in inner]
            begin = stop
    return found

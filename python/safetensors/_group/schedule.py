"""Which rank reads which bytes for a group of ranks, and how the others get them.

A pure function of the tensors and of what each rank takes: all ranks compute the same schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from .column import Column
from .frame import Block, Frame
from .parts import UNUSUAL, Axes, Taken, length, nbytes_of

PIECE_NBYTES = 16 << 20
"""The most bytes of a broadcast that goes from one rank's tensor to the others'."""

BUFFER_NBYTES = 8 << 20
"""The most bytes of a bucket, and the most that a rank reads, sends or receives in an exchange."""

_SMALL_NBYTES = 4 << 20  # shorter blocks are broadcast together
_MIN_EXCHANGE_NBYTES = 1 << 20  # of shorter tensors, every rank gets what any rank takes
_BUCKET_BLOCKS = 1 << 13  # the most of a bucket: each takes some memory until it is loaded
_BUCKET_STEPS = 8  # a bucket is sent after so many other steps, even if it is not full
_MAX_OVER_READ = 1.05  # of a part that a rank reads for itself


class Tensor(NamedTuple):
    """What matters of a tensor of a file."""

    shape: tuple[int, ...]
    """The last axis in bytes, see `_regions.byte_shape`."""
    gap_nbytes: int
    """A shorter gap between wanted bytes is read."""


class Own(NamedTuple):
    """Some ranks read what they take of a tensor by themselves. No data is sent."""

    tensor: int
    ranks: frozenset[int]


class Broadcast(NamedTuple):
    """One rank reads blocks, and all ranks get them, in this order and without gaps.

    Several blocks, or one that not all ranks take whole, go by way of a bucket.
    """

    owner: int
    blocks: tuple[tuple[int, Block], ...]
    """Pairs of a tensor and a block of its frame. Tensors that are loaded alike have one block in
    common."""
    nbytes: int
    is_bucket: bool


class Exchange(NamedTuple):
    """Each rank reads a run of rows, and sends to each rank what that one takes of them. What a
    rank receives is one stretch of its local tensor, by the order of the ranks."""

    tensor: int
    blocks: tuple[Block, ...]
    """The block that each rank reads; it may be empty."""


Step = Own | Broadcast | Exchange


class Schedule(NamedTuple):
    """The steps of a load. All ranks take part in every Broadcast and Exchange, in this order."""

    steps: list[Step]
    frames: list[Frame | None]
    """By tensor; None for tensors that no step but Own has."""


class _Way(NamedTuple):
    """How tensors of one shape, of which the ranks take the same, are loaded."""

    readers: dict[int, int]
    """The ranks that read for themselves, and the bytes that they read."""
    ranks: frozenset[int]
    """The same ranks."""
    frame: Frame | None
    is_alike: bool
    """All ranks take the same."""
    blocks: list[tuple[Block, int]]
    """The blocks that are broadcast, and the bytes of each. Empty if ranks read for themselves or
    exchange rows: blocks of such tensors depend on how many bytes each rank has to read so far."""


def schedule(tensors: Column[Tensor], taken: Sequence[Column[Taken]]) -> Schedule:
    """Returns the schedule of a load.

    A rank reads for itself what no other rank takes, if its reads are about as long as its part.
    What all ranks take is broadcast by owners that alternate; short tensors that the ranks share
    otherwise are broadcast, too. The rest is exchanged. So no rank reads what another one reads,
    except of tensors with an UNUSUAL part.

    Args:
        tensors: in the order of the files, and of the bytes in them.
        taken: by rank, what it takes of each tensor.
    """
    builder = _Builder(len(taken))
    ways: dict[tuple[int, ...], _Way] = {}
    keys = zip(tensors.numbers, *(each.numbers for each in taken), strict=True)
    for number, key in enumerate(keys):
        way = ways.get(key)
        if way is None:
            parts = [rank.values[at] for rank, at in zip(taken, key[1:], strict=True)]
            way = ways[key] = _way(tensors.values[key[0]], parts)
        builder.add(number, way)
    return builder.finish()


def _way(tensor: Tensor, parts: Sequence[Taken]) -> _Way:
    products: list[Axes | None] = []
    for part in parts:
        if part is UNUSUAL:
            nbytes = math.prod(tensor.shape)
            return _own_way({rank: nbytes for rank, each in enumerate(parts) if _takes(each)})
        products.append(part if _takes(part) else None)
    readers = {
        rank: _read_nbytes(tensor, axes) for rank, axes in enumerate(products) if axes is not None
    }
    distinct = set(filter(None, products))
    if len(readers) <= 1 or (len(distinct) == len(readers) and _are_disjoint([*distinct], 0)):
        wanted = {rank: nbytes_of(products[rank] or ()) for rank in readers}
        if len(readers) <= 1 or all(
            readers[rank] <= _MAX_OVER_READ * wanted[rank] for rank in readers
        ):
            return _own_way(readers)
    is_alike = len(distinct) == 1 and len(readers) == len(parts)
    frame = Frame(tensor.shape, products)
    blocks: list[tuple[Block, int]] = []
    if is_alike or nbytes_of(frame.union) < _MIN_EXCHANGE_NBYTES:
        most = PIECE_NBYTES // (frame.unit * frame.row_nbytes)
        for lead in frame.leads():
            for begin, end in _evenly(frame.count, frame.unit, most):
                block = Block(lead, begin, end)
                blocks.append((block, frame.block_nbytes(block)))
    return _Way({}, frozenset(), frame, is_alike, blocks)


def _own_way(readers: dict[int, int]) -> _Way:
    return _Way(readers, frozenset(readers), None, False, [])


def _takes(part: Taken) -> bool:
    return part is not None and (part is UNUSUAL or nbytes_of(part) != 0)


def _are_disjoint(parts: Sequence[Axes], axis: int) -> bool:
    """Returns whether no byte is in two parts, all of which share indices on the axes before."""
    if len(parts) < 2:
        return True
    if axis == len(parts[0]):
        return False
    edges = sorted(
        (edge, is_begin, number)
        for number, part in enumerate(parts)
        for pair in part[axis]
        for edge, is_begin in zip(pair, (True, False), strict=True)
    )
    inside: dict[int, Axes] = {}
    known = set()
    has_grown = False
    for _, is_begin, number in edges:  # at one index, ranges end before others begin
        if is_begin:
            inside[number] = parts[number]
            has_grown = True
            continue
        sharing = frozenset(inside)
        if has_grown and sharing not in known:
            known.add(sharing)
            if not _are_disjoint([*inside.values()], axis + 1):
                return False
        has_grown = False
        del inside[number]
    return True


def _read_nbytes(tensor: Tensor, axes: Axes) -> int:
    """Returns the bytes that a read of a part reads: those of short gaps are included."""
    first, last, nbytes = 0, 1, 1  # what one index of the axis reads: from, to, how many
    stride = 1
    for size, ranges in zip(reversed(tensor.shape), reversed(axes), strict=True):
        gaps = [(stride - last + first, length(ranges) - len(ranges))]
        for (_, end), (begin, _) in itertools.pairwise(ranges):
            gaps.append(((begin - end + 1) * stride - last + first, 1))
        nbytes = nbytes * length(ranges)
        nbytes += sum(gap * count for gap, count in gaps if gap < tensor.gap_nbytes)
        first, last = ranges[0][0] * stride + first, (ranges[-1][1] - 1) * stride + last
        stride *= size
    return nbytes


class _Builder:
    """Makes the steps in the order of the tensors. Owners are the ranks that read least so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._steps: list[Step] = []
        self._frames: list[Frame | None] = []
        self._read = [0] * size
        self._bucket: list[tuple[int, Block]] = []
        self._bucket_nbytes = 0
        self._bucket_end = 0  # the number of steps after which the bucket is sent

    def add(self, number: int, way: _Way) -> None:
        """Adds the steps of the next tensor."""
        self._frames.append(way.frame)
        if way.readers:
            for rank, nbytes in way.readers.items():
                self._read[rank] += nbytes
            self._append(Own(number, way.ranks))
        elif way.blocks:
            for block, nbytes in way.blocks:
                if way.is_alike and nbytes >= _SMALL_NBYTES:
                    piece = Broadcast(self._owner(nbytes), ((number, block),), nbytes, False)
                    self._append(piece)
                    continue
                if self._bucket_nbytes + nbytes > BUFFER_NBYTES:
                    self._send_bucket()
                if not self._bucket:
                    self._bucket_end = len(self._steps) + _BUCKET_STEPS
                self._bucket.append((number, block))
                self._bucket_nbytes += nbytes
                if len(self._bucket) >= _BUCKET_BLOCKS:
                    self._send_bucket()
        elif way.frame is not None:
            for lead in way.frame.leads():
                self._exchange(number, way.frame, lead)

    def finish(self) -> Schedule:
        self._send_bucket()
        return Schedule(self._steps, self._frames)

    def _exchange(self, number: int, frame: Frame, lead: tuple[int, ...]) -> None:
        unit = frame.unit
        # Of the units that one rank reads, and of all units of a step.
        shares = [frame.row_nbytes_of(rank) for rank in frame.takers]
        read = BUFFER_NBYTES // (unit * max(frame.row_nbytes, sum(shares)))
        received = BUFFER_NBYTES // (unit * max(shares))
        for begin, end in _evenly(frame.count, unit, min(read * self._size, received)):
            each, more = divmod(-(-(end - begin) // unit), self._size)
            first = sorted(range(self._size), key=self._read.__getitem__)[:more]
            blocks = []
            for rank in range(self._size):
                last = min(end, begin + (each + (rank in first)) * unit)
                blocks.append(Block(lead, begin, last))
                self._read[rank] += frame.block_nbytes(blocks[-1])
                begin = last
            self._append(Exchange(number, tuple(blocks)))

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        if self._bucket and len(self._steps) >= self._bucket_end:
            self._send_bucket()

    def _send_bucket(self) -> None:
        if self._bucket:
            nbytes = self._bucket_nbytes
            step = Broadcast(self._owner(nbytes), tuple(self._bucket), nbytes, True)
            self._bucket, self._bucket_nbytes = [], 0
            self._steps.append(step)

    def _owner(self, nbytes: int) -> int:
        owner = min(range(self._size), key=self._read.__getitem__)
        self._read[owner] += nbytes
        return owner


def _evenly(count: int, unit: int, most: int) -> list[tuple[int, int]]:
    """Divides `count` rows into even runs of whole units, at most `most` units each."""
    units = -(-count // unit)
    runs = -(-units // max(1, most))
    edges = [min(count, units * i // runs * unit) for i in range(runs + 1)]
    return list(itertools.pairwise(edges))

"""Reads many short blocks of tensors into one message, and copies them out of it."""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from .. import _extra
from .._torch.wanted import gc_paused
from .frame import Block, Frame
from .parts import Axes, Ranges, length, nbytes_of

Blocks = Sequence[tuple[int, Block]]
"""Pairs of a tensor's number and a block of its frame."""


class _Cut(NamedTuple):
    """What this rank does with a block."""

    block: Block
    parts: list[tuple[Axes, int]]
    """What it reads, in the order of the bytes, and how many bytes each is."""
    nbytes: int
    """The bytes of the block."""
    rows: list[tuple[int, int, int, int, int, int]]
    """What it takes: the offset in its own tensor, that in the block, the bytes of a row, how many
    rows, and the distances between rows there and there."""


class Packer:
    """Knows what this rank reads and takes of blocks. What it finds for a block serves all tensors
    that have the block in common."""

    def __init__(
        self,
        rank: int,
        frames: Sequence[Frame | None],
        addresses: Sequence[int],
        bytes_of: Callable[[int], torch.Tensor],
    ) -> None:
        """
        Args:
            rank: this rank.
            frames: of the tensors.
            addresses: where the bytes of this rank's tensors are on the CPU; 0 for others.
            bytes_of: returns the bytes of one of the others.
        """
        self._rank, self._frames = rank, frames
        self._addresses, self._bytes_of = addresses, bytes_of
        self._cuts: dict[int, _Cut] = {}

    @gc_paused()
    def requests(
        self, blocks: Blocks, to: torch.Tensor
    ) -> list[tuple[int, Axes | None, torch.Tensor]]:
        """Returns the reads of blocks to contiguous bytes, one after the other."""
        numbers: list[int] = []
        parts: list[Axes] = []
        sizes: list[int] = []
        cuts = self._cuts
        for number, block in blocks:
            for axes, nbytes in (cuts.get(id(block)) or self._cut(number, block)).parts:
                numbers.append(number)
                parts.append(axes)
                sizes.append(nbytes)
        pieces = to[: sum(sizes)].split_with_sizes(sizes)
        return list(zip(numbers, parts, pieces, strict=True))

    def unpack(self, blocks: Blocks, data: torch.Tensor) -> None:
        """Copies what this rank takes of blocks that follow one another."""
        if data.device.type != "cpu":
            self._unpack_by_torch(blocks, data)
            return
        moves = array("q")
        at = 0
        cuts, addresses, add = self._cuts, self._addresses, moves.extend
        for number, block in blocks:
            cut = cuts.get(id(block)) or self._cut(number, block)
            for offset, begin, row, rows, to_stride, from_stride in cut.rows:
                to = addresses[number] or self._bytes_of(number).data_ptr()
                add((to + offset, at + begin, row, rows, to_stride, from_stride))
            at += cut.nbytes
        _extra._copy_rows(data.data_ptr(), at, moves)

    def _unpack_by_torch(self, blocks: Blocks, data: torch.Tensor) -> None:
        at = 0
        for number, block in blocks:
            frame = self._frame(number)
            offset, nbytes = frame.share(self._rank, block)
            if nbytes:
                to = self._bytes_of(number)[offset : offset + nbytes]
                select(frame, self._rank, block, data[at:], to)
            at += frame.block_nbytes(block)

    def _cut(self, number: int, block: Block) -> _Cut:
        """Returns what is to be done with a block, and remembers it."""
        frame = self._frame(number)
        parts = [(axes, nbytes_of(axes)) for axes in frame.axes_of(block)]
        rows = list(_rows(frame, self._rank, block))
        found = _Cut(block, parts, frame.block_nbytes(block), rows)
        self._cuts[id(block)] = found  # which keeps the block, and so its id
        return found

    def _frame(self, number: int) -> Frame:
        frame = self._frames[number]
        assert frame is not None, "tensors in steps with communication have frames"
        return frame


def select(frame: Frame, rank: int, block: Block, rows: torch.Tensor, to: torch.Tensor) -> None:
    """Copies what a rank takes of a block to contiguous bytes."""
    selection = frame.selection(rank, block)
    source = rows[: frame.block_nbytes(block)].view(frame.block_shape(block))
    target = to.view([length(ranges) for ranges in selection])
    for pairs in itertools.product(*map(_slices, selection)):
        begins, ends = zip(*pairs, strict=True)
        target[ends].copy_(source[begins])


def _rows(frame: Frame, rank: int, block: Block) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yields what a rank takes of a block, see `_Cut.rows`."""
    first, nbytes = frame.share(rank, block)
    if nbytes == 0:
        return
    if nbytes == frame.block_nbytes(block):
        yield first, 0, nbytes, 1, 0, 0
        return
    selection = frame.selection(rank, block)
    from_strides = _strides(frame.block_shape(block))
    to_strides = _strides([length(ranges) for ranges in selection])
    last = len(selection) - 1
    for pairs in itertools.product(*map(_slices, selection)):
        # All axes but the last two are taken index by index.
        outer = [range(begin.stop - begin.start) for begin, _ in pairs[: max(0, last - 1)]]
        begins, ends = zip(*pairs, strict=True)
        begin, to = _offset(begins, from_strides), _offset(ends, to_strides)
        row = pairs[last][0].stop - pairs[last][0].start
        rows = pairs[last - 1][0].stop - pairs[last - 1][0].start if last else 1
        to_stride, from_stride = (
            each[last - 1] if last else 0 for each in (to_strides, from_strides)
        )
        for indices in itertools.product(*outer):
            at = [sum(map(operator.mul, indices, each)) for each in (to_strides, from_strides)]
            yield first + to + at[0], begin + at[1], row, rows, to_stride, from_stride


def _offset(place: Sequence[slice], strides: Sequence[int]) -> int:
    """Returns the offset of the first element."""
    return sum(each.start * stride for each, stride in zip(place, strides, strict=True))


def _strides(shape: Sequence[int]) -> list[int]:
    found = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * size)
    return found[::-1]


def _slices(ranges: Ranges) -> list[tuple[slice, slice]]:
    """Returns where each of the ranges is, and where it is if they follow one another."""
    found, at = [], 0
    for begin, end in ranges:
        found.append((slice(begin, end), slice(at, at + end - begin)))
        at += end - begin
    return found

"""Which bytes two files can share. FileWriter::copy decides the same in C++."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

_BLOCK_NBYTES = 4096
_LEAST_NBYTES = 64 << 10
"""Smaller pieces are copied."""


def shared_data_begin(tensors: Iterable[tuple[int, int]]) -> int:
    """Returns at which offset, modulo the size of a block, data must begin to share most bytes.

    Other programs let the data of a file begin at any multiple of 8. The layout `blocks` keeps
    tensors of whole blocks at one offset modulo the size of a block, so most bytes decide.

    Args:
        tensors: the offset of each in its source, and its size in bytes.
    """
    nbytes: Counter[int] = Counter()
    for begin, size in tensors:
        if size % _BLOCK_NBYTES == 0 and begin % 8 == 0:
            nbytes[begin % _BLOCK_NBYTES] += size
    return max(nbytes, key=lambda begin: (nbytes[begin], -begin), default=0)


class Piece(NamedTuple):
    """Bytes of a source that are copied to a file."""

    source: Hashable
    begin: int
    nbytes: int
    to: int
    """Their offset in the new file."""


def shareable_nbytes(pieces: Iterable[Piece]) -> int:
    """Returns how many bytes can be shared. File systems share whole blocks only, which lie at the
    same offset modulo their size in both files.

    Args:
        pieces: in the order in which they are copied.
    """
    total = 0
    for run in _joined(pieces):
        if (run.begin - run.to) % _BLOCK_NBYTES == 0:
            whole = (run.nbytes - -run.begin % _BLOCK_NBYTES) // _BLOCK_NBYTES * _BLOCK_NBYTES
            total += whole if whole >= _LEAST_NBYTES else 0
    return total


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Joins pieces that are adjacent in both files."""
    last: Piece | None = None
    for piece in pieces:
        if last is None:
            last = piece
        elif piece == (last.source, last.begin + last.nbytes, piece.nbytes, last.to + last.nbytes):
            last = last._replace(nbytes=last.nbytes + piece.nbytes)
        else:
            yield last
            last = piece
    if last is not None:
        yield last

"""Writes ranges of files."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import boxes

MAX_PER_CALL = 16 << 20


def write_part(
    fd: int, begin: int, whole: boxes.Sizes, part: boxes.Box, pieces: Iterable[memoryview]
) -> int:
    """Writes a part of a tensor, whose bytes come in pieces. Returns how many there were.

    Args:
        fd: the file.
        begin: where the whole tensor begins in it.
    """
    starts, run = boxes.runs(whole, part)
    at, left, total = 0, 0, 0
    for piece in pieces:
        total += len(piece)
        while piece:
            if left == 0:
                at, left = begin + next(starts), run
            done = os.pwrite(fd, piece[: min(left, MAX_PER_CALL)], at)
            piece = piece[done:]
            at += done
            left -= done
    return total


def write(fd: int, begin: int, data: memoryview) -> None:
    """Writes bytes at an offset."""
    while data:
        done = os.pwrite(fd, data[:MAX_PER_CALL], begin)
        data = data[done:]
        begin += done

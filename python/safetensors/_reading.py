"""Reads of open files by position."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable

from . import _core

__all__ = [
    "LENGTH_NBYTES",
    "MAX_HEADER_NBYTES",
    "Version",
    "read_all",
    "read_some",
    "version_of",
]

LENGTH_NBYTES = 8
"""A file begins with the length of its header."""
MAX_HEADER_NBYTES: int = _core._MAX_HEADER_NBYTES

Version = tuple[int, int, int, int]
"""Differs for another file, and for one that was written to."""

_SEEKING = threading.Lock()


def version_of(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_some(file: io.FileIO, begin: int, nbytes: int) -> bytes:
    """Returns bytes from a position: fewer than asked for, and none at the end. Thread safe."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), nbytes, begin)
    with _SEEKING:
        file.seek(begin)
        return file.read(nbytes) or b""


def read_all(read: Callable[[int, int], bytes], begin: int, nbytes: int) -> bytes:
    """Returns exactly these bytes. `read(begin, nbytes)` may return fewer: on Linux, one read
    returns at most 2 GiB.

    Raises:
        EOFError: it returned none.
    """
    pieces = []
    while nbytes > 0:
        piece = read(begin, nbytes)
        if not piece:
            raise EOFError
        pieces.append(piece)
        begin, nbytes = begin + len(piece), nbytes - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

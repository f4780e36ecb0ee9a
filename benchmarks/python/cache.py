"""The page cache: taking a file out of it, and whether that worked."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np


def resident(path: Path) -> float:
    """The share of a file's pages that lie in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        answer = np.zeros(-(-len(view) // mmap.PAGESIZE), "u1")
        whole = np.frombuffer(view, "u1")
        status = libc.mincore(
            ctypes.c_void_p(whole.ctypes.data),
            ctypes.c_size_t(len(view)),
            ctypes.c_void_p(answer.ctypes.data),
        )
        del whole
        if status:
            raise OSError(ctypes.get_errno(), "mincore")
    return float((answer & 1).mean())


def drop(path: Path) -> float:
    """Take a file out of memory; the share of its pages that stayed there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident(path)


def warm(path: Path) -> None:
    """Read a file once."""
    with path.open("rb", buffering=0) as file:
        piece = bytearray(8 << 20)
        while file.readinto(piece):
            pass

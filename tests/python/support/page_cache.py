"""What the Linux page cache holds of a file."""

import ctypes
import mmap
import os

import numpy as np

PAGE = mmap.PAGESIZE


def resident(path):
    """Returns for each page of the file whether it is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        count = -(-len(view) // PAGE)
        answer = np.zeros(count, "u1")
        begin = np.frombuffer(view, "u1")
        status = libc.mincore(
            ctypes.c_void_p(begin.ctypes.data),
            ctypes.c_size_t(len(view)),
            ctypes.c_void_p(answer.ctypes.data),
        )
        assert status == 0, os.strerror(ctypes.get_errno())
        del begin
    return answer & 1


def drop(path):
    """Removes the file from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

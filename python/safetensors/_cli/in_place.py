"""Changing a few bytes of a file where they are, when that is atomic."""

import errno
import os
import signal

from .compare import first_difference
from .header_text import LENGTH_NBYTES

_SECTOR_NBYTES = 512


def change_in_place(path: str, old: bytes, new: bytes) -> bool:
    """Changes a header to another of the same length, on the disk when this returns.

    Returns whether it did: only when nothing can tear the change. Three things could:

    * a power failure: all bytes that change lie in one sector of 512, which disks write whole;
    * a kill: one write within one page is not interrupted;
    * readers: a write lease is held, which the system grants only while nobody else has the file
      open or mapped, and which makes who opens it wait until it is given back.
    """
    place = _changed_in_one_sector(old, new)
    if place is None:
        return False
    try:
        import fcntl

        set_lease, write, none = fcntl.F_SETLEASE, fcntl.F_WRLCK, fcntl.F_UNLCK
    except (ImportError, AttributeError):  # not Linux
        return False
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    # The system tells by this signal that somebody waits; by default it ends the process.
    former = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        try:
            fcntl.fcntl(fd, set_lease, write)
        except OSError:
            return False
        try:
            if os.pread(fd, len(old), LENGTH_NBYTES) != old:
                return False
            begin, end = place
            if os.pwrite(fd, new[begin:end], LENGTH_NBYTES + begin) != end - begin:
                raise OSError(errno.EIO, "the header was written in part only", path)
            os.fsync(fd)
        finally:
            fcntl.fcntl(fd, set_lease, none)
    finally:
        signal.signal(signal.SIGIO, former)
        os.close(fd)
    return True


def _changed_in_one_sector(old: bytes, new: bytes) -> tuple[int, int] | None:
    """A range of the header that has all bytes that differ; None when not in one sector."""
    begin = first_difference(old, new)
    end = begin + _SECTOR_NBYTES - (LENGTH_NBYTES + begin) % _SECTOR_NBYTES
    if old[end:] != new[end:]:
        return None
    return begin, min(end, len(old))

"""Finds out whether another program uses a file, and makes those wait that open it."""

from __future__ import annotations

import contextlib
import fcntl
import signal
from collections.abc import Iterator

from .. import _core

__all__ = ["is_leased", "leased"]


@contextlib.contextmanager
def leased(fd: int) -> Iterator[str]:
    """Holds a write lease: until the end, another process that opens the file waits.

    Yields why there is no lease, or nothing. Linux grants it only if nobody else has the file open
    or mapped; but on overlayfs, also while it is mapped. After 45 seconds
    (/proc/sys/fs/lease-break-time) it breaks the lease: see is_leased().
    """
    why = _refusal(fd)
    try:
        yield why
    finally:
        if not why:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def is_leased(fd: int) -> bool:
    """Returns whether the lease still holds."""
    return fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK


def _refusal(fd: int) -> str:
    """Takes the lease, or returns why not."""
    unknown = "the system does not tell whether it is in use"
    if not hasattr(fcntl, "F_SETLEASE") or not _core._leases_see_mappings(fd):
        return unknown
    try:
        # The system sends this signal when another process waits. By default, it is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return "it is open or mapped"
    except OSError:
        return unknown
    return ""

"""Locks and flushes files of a folder that a save or a recovery works on."""

from __future__ import annotations

import fcntl
import os

from ._folder import Folder


def flush(folder: Folder, name: str) -> None:
    """Waits until a file is on the disk."""
    fd = folder.open(name, own=False, write=False)
    if fd is None:
        raise FileNotFoundError(2, os.strerror(2), os.path.join(folder.path, name))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock(fd: int) -> bool:
    """Locks a file until it is closed. Returns false if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

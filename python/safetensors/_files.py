"""Opens, locks and flushes the files that a save or a recovery works on."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import NoReturn

from ._core import SafetensorError

_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def flush(path: str) -> None:
    """Waits until a file or the entries of a folder are on the disk.

    A folder that may not be read, or that the file system cannot flush, is not flushed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        if os.path.isdir(path):
            return
        raise
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH or not os.path.isdir(path):
            raise
    finally:
        os.close(fd)


def lock(fd: int) -> bool:
    """Locks a file until it is closed. Returns false if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_untrusted(path: str) -> int:
    """Opens a file that another user may have put there. Raises OSError for a symbolic link."""
    # O_RDWR: NFS locks only files that are open for writing. O_NONBLOCK: a pipe would block.
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def check_own(status: os.stat_result, path: str) -> None:
    """Raises unless the file is a regular one of this user."""
    if not stat.S_ISREG(status.st_mode):
        refuse(path, "it is not a regular file")
    if status.st_uid != os.geteuid():
        refuse(path, "it belongs to another user")


def refuse(path: str, reason: str) -> NoReturn:
    """Raises because a recovery would have to believe this file."""
    raise SafetensorError(f"{path} is not followed: {reason}")

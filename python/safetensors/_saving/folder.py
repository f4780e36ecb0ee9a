"""The primitive for files whose names the caller did not give, and the private folders beside a
model.

    .model.0123456789abcdef.save/      a save of `model`: its parts
    .model.0123456789abcdef.journal/   a change in place: its journal

No other user can enter such a folder, so nobody else can plant, swap or read what is in it. What
else has such a name is not believed: another user may have given it to some folder of this user.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from .._core import SafetensorError, _own_stem_in
from .._core import _Folder as Folder
from .._errors import failure
from .._warn import warn

__all__ = ["Folder"]

File = tuple[Folder, str]
"""A file in a folder."""

_SECONDS_UNTIL_STALE = 60
_REMOVED = re.compile(r"\.nfs[0-9a-f]+")
"""A file that was removed while a process has it open, on NFS."""
NOT_FOLLOWED = ", so it is not followed"
"""Follows the reason in errors, also in those of the compiled module."""


class Left(NamedTuple):
    """A private folder of this user, which a process uses or has left."""

    stem: str
    """What it is about: of a long name, a part."""
    folder: Folder


class Foreign(NamedTuple):
    """Something else that has the name of a private folder."""

    stem: str
    name: str
    owner: int | None
    """The user, if it is a private folder of another one."""


def left_in(
    folder: Folder, kind: str, is_wanted: Callable[[str], bool], is_part: Callable[[str], bool]
) -> tuple[list[Left], list[Foreign]]:
    """Returns what has the name of a private folder of a kind, sorted by name, for some stems.

    A folder of this user is none of the kind if a file in it has a name for which `is_part` is
    false.
    """
    left, foreign = [], []
    for name in sorted(folder.names()):
        stem = _own_stem_in(name, kind)
        if stem is None or not is_wanted(stem):
            continue
        try:
            found = folder.open_private(name)
        except SafetensorError as error:
            if isinstance(error, OSError) and not isinstance(error, PermissionError):
                raise
            foreign.append(Foreign(stem, name, _owner(folder, name)))
        else:
            if found is None:  # its process has completed
                continue
            if all(is_part(file) or _REMOVED.fullmatch(file) for file in found.names()):
                left.append(Left(stem, found))
            else:
                foreign.append(Foreign(stem, name, None))
    return left, foreign


def _owner(folder: Folder, name: str) -> int | None:
    try:
        status = os.stat(name, dir_fd=folder.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        return None
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return status.st_uid if is_private and status.st_uid != os.geteuid() else None


def user_name(user: int) -> str:
    """Returns the name of a user, or the number of one without a name."""
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def warn_of(folder: Folder, foreign: Iterable[Foreign]) -> None:
    """Warns, once for all of them, of what a recovery leaves alone."""
    names = sorted(each.name for each in foreign)
    if names:
        warn(
            f"{folder.path}: {', '.join(names[:5])}{', ...' * (len(names) > 5)} was left alone: "
            "it is not a private folder of this user, or has other files in it"
        )


def is_used(room: Folder) -> bool:
    """Returns whether a process may still have the private folder: it has locked the folder, and
    a file in it while it writes that.

    Where locks do not show the processes of other machines, one younger than a minute counts, too.
    """
    if not room.sees_all_locks():
        age = time.time() - os.fstat(room.fileno()).st_mtime
        if age <= _SECONDS_UNTIL_STALE:
            return True
    return not _can_lock(room.fileno()) or any(_is_locked(room, name) for name in room.names())


def _is_locked(room: Folder, name: str) -> bool:
    """NFS shows other machines the locks of files, but not those of folders."""
    fd = room.open(name)
    if fd is None:
        return False
    try:
        return not _can_lock(fd)
    finally:
        os.close(fd)


def _can_lock(fd: int) -> bool:
    """Returns false if another process has locked it; true on a file system without locks."""
    try:
        return lock(fd)
    except OSError:
        return True


def read_whole(folder: Folder, name: str, most: int) -> bytes | None:
    """Returns the content of a small file of this user; None if there is none.

    Raises:
        SafetensorError: it is a link, no regular file, another user's, or has more than `most`
            bytes.
    """
    fd = folder.open(name, write=False)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        refuse(os.path.join(folder.path, name), f"it has more than {most:,} bytes")
    return data


def flush(folder: Folder, name: str) -> None:
    """Waits until a file is on the disk."""
    fd = folder.open(name, own=False, write=False)
    if fd is None:
        path = os.path.join(folder.path, name)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
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


def refuse(path: str, reason: str) -> NoReturn:
    """Raises because a recovery would have to believe this file."""
    raise failure("invalid_argument", f"{reason}{NOT_FOLLOWED}", path=path)

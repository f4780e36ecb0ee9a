"""The primitive for files whose names the caller did not give, and the private folders beside a
model: `_Folder` of the compiled module."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable
from typing import NamedTuple, NoReturn

from .._core import _Folder as Folder
from .._errors import failure
from .._warn import warn

__all__ = ["Folder"]

NOT_FOLLOWED = ", so it is not followed"
"""Follows the reason in errors, also in those of the compiled module."""


class Foreign(NamedTuple):
    """Something that has the name of a private folder, but is none of this user."""

    stem: str
    name: str


def warn_of(folder: Folder, foreign: Iterable[str]) -> None:
    """Warns, once for all of these names, of what a recovery leaves alone."""
    names = sorted(foreign)
    if names:
        warn(
            f"{folder.path}: {', '.join(names[:5])}{', ...' * (len(names) > 5)} was left alone: "
            "it is not a private folder of this user, or has other files in it"
        )


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

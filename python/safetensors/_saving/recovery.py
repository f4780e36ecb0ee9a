"""Recovers models whose save, or change in place, was interrupted (docs/format.md)."""

from __future__ import annotations

import os

from .. import _extra
from .._paths import absolute
from .._typing import Path
from .folder import Folder, warn_of

_CLEAN = "clean"


def recover(path: Path) -> str:
    """Completes or undoes saves, and changes in place, that a kill or a power failure interrupted.

    Saving to a folder does this first, so a program needs it only before it loads.

    Args:
        path: a file of the model, or a folder, all of whose models are recovered. What other users
            have left in a folder, or made under such names, is left alone, with a warning.

    Returns:
        "rolled forward" if the new model, or the change, has taken its place, "rolled back" if
        temporary files were removed, and "clean" if there was nothing to do.

    Raises:
        SafetensorError: a process is saving; a file that the recovery would follow belongs to
            another user, is not a regular file, or names other files; or `path` is a file that
            does not open although there was nothing to recover.
        FileNotFoundError: neither `path` nor another file of its model exists.
        OSError: an operating system call failed.
    """
    typed, file = absolute(path), ""
    if not os.path.isdir(typed):
        typed, file = os.path.split(typed)
    folder = Folder(typed)
    outcome, left_alone = _extra._recover_in(folder, file)
    warn_of(folder, left_alone)
    if outcome == _CLEAN and file:
        _extra._refuse_unrecovered(folder, file)
    return outcome


def old_names(folder: str, name: str) -> list[str]:
    """Returns the names of the files of a model: its index, its single file, and the shards that
    the index names; none without the folder.

    Raises:
        SafetensorError: the index is damaged, another user's, or not a regular file.
    """
    return _extra._old_names(Folder(folder), name) if os.path.isdir(folder) else []

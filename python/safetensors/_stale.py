"""Removes the temporary files that killed saves of single files have left."""

from __future__ import annotations

import contextlib
import os
import re

from . import _split
from ._core import SafetensorError
from ._folder import Folder, is_young, lock

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)


def remove_stale(folder: Folder, only: str) -> int:
    """Removes this user's files of this kind that no process writes, and returns how many.

    With `only`, those of the saves of this file.
    """
    return sum(_remove(folder, name, only) for name in folder.names())


def _remove(folder: Folder, name: str, only: str) -> bool:
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    target = match[1]
    if target.endswith(_split.SUMS):
        target = target.removesuffix(_split.SUMS) + ".safetensors"
    if not (target == only if only else target.endswith(".safetensors")):
        return False
    with contextlib.suppress(OSError, SafetensorError):
        fd = folder.open(name)
        if fd is None:
            return False
        try:
            return not is_young(fd) and lock(fd) and folder.remove(name, fd)
        finally:
            os.close(fd)
    return False

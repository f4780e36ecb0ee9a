"""The primitive for files whose names the caller did not give, and the private folders beside a
model: `_Folder` of the compiled module."""

from __future__ import annotations

from collections.abc import Iterable

from .._extra import _Folder as Folder
from .._warn import warn

__all__ = ["Folder"]


def warn_of(folder: Folder, foreign: Iterable[str]) -> None:
    """Warns, once for all of these names, of what a recovery leaves alone."""
    names = sorted(foreign)
    if names:
        warn(
            f"{folder.path}: {', '.join(names[:5])}{', ...' * (len(names) > 5)} was left alone: "
            "it is not a private folder of this user, or has other files in it"
        )

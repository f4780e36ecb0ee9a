"""Changes tensors of files in place, so that a crash at any time loses nothing: the steps are the
compiled module's (docs/format.md, "Changes in place")."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import _extra
from .._extra import _InPlaceChange as InPlaceChange
from .folder import Folder, warn_of

__all__ = ["InPlaceChange", "open_change"]


def open_change(paths: Sequence[str], name: str, shared: bool) -> InPlaceChange:
    """Opens files of one folder to change their tensors together.

    Nothing changes before `commit()`: an exception leaves the files as they were.

    Args:
        paths: the files.
        name: what is changed, for the journal's name: a file or an index.
        shared: if false, raises if another program, or this one, has a file open or mapped.
    """
    folder = Folder(os.path.dirname(paths[0]))
    names = [os.path.basename(path) for path in paths]
    warn_of(folder, _extra._recover_changes(folder, [name, *names]))
    return InPlaceChange(folder, names, name, shared)

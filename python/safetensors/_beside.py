"""Writes files beside a model whose names follow from its own: sums and signatures."""

from __future__ import annotations

import os
from typing import Optional

from . import _core, _folder


def write_beside(path: str, data: bytes, model_file: Optional[str], fsync: bool = False) -> None:
    """Replaces a file, or a link, by one with the rights of a file of the model, if it has any.

    What is beside a model tells about it: who may not read the model may not read this, either.
    """
    # A cache has links to its files.
    like = None if model_file is None else os.path.realpath(model_file)
    if os.name == "nt":  # which has no links that other users can make
        _core._write_file(path, data, fsync, like)
        return
    folder, name = os.path.split(path)
    rights = None
    if like is not None:
        rights = (_folder.Folder(os.path.dirname(like)), os.path.basename(like))
    _folder.Folder(folder or ".").replace(name, data, rights, fsync)

"""Changes tensors of files in place, so that a crash at any time loses nothing.

docs/format.md, "Changes in place", describes the steps.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import _core
from .folder import Folder, warn_of
from .journal import JOURNAL, KIND, NAME, NEW, File, Journal, finish, recover_files, refuse_in_place
from .lease import is_leased, leased
from .writer import safe_create

Edit = tuple[str, Callable[[bytes], Any]]
"""A tensor's name, and a function that returns its new bytes from the old ones."""


def edit_files(
    paths: Sequence[str],
    name: str,
    edits_of: Callable[[Sequence[File]], Iterable[Edit]],
    shared: bool,
) -> None:
    """Changes tensors of files of one folder in place.

    Args:
        paths: the files.
        name: what is changed, for the journal's name: a file or an index.
        edits_of: returns which tensors of the open files to change, and how. All of them are
            prepared before the first file is changed: an exception leaves the files as they were.
        shared: if false, raises if another program, or this one, has a file open or mapped.
    """
    folder = Folder(os.path.dirname(paths[0]))
    names = [os.path.basename(path) for path in paths]
    changes = recover_files(folder, [name, *names])
    warn_of(folder, (each.name for each in changes.foreign))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(File(folder, each)) for each in names]
        # The journal could change the tensor of both files only.
        _core._refuse_repeated([[*file.handle] for file in files], [file.path for file in files])
        for file in files:
            if file.is_marked:
                refuse_in_place(file.path, "a change was interrupted, and its journal is gone")
        if not shared:
            for file in files:
                why = stack.enter_context(leased(file.fd))
                if why:
                    refuse_in_place(file.path, f"{why}, and shared=True was not given")
        journal = _write_journal(folder, name, files, edits_of(files))
        if journal is None:
            return
        stack.enter_context(journal)
        if not shared:
            _check_leases(files, journal)
        try:
            finish(journal, files)
        except KeyboardInterrupt:
            if journal.is_there:
                finish(journal, files)
            journal.remove()
            raise


def _check_leases(files: Sequence[File], journal: Journal) -> None:
    """Raises if a lease was broken. Who opens a file from now on waits until it is marked."""
    for file in files:
        if not is_leased(file.fd):
            journal.remove()
            refuse_in_place(file.path, "another process opened it while the change was prepared")


def _write_journal(
    folder: Folder, name: str, files: Sequence[File], edits: Iterable[Edit]
) -> Journal | None:
    """Writes and flushes the journal of the edits. Returns None if they change nothing.

    Its folder is private, because it has tensors of the files: nobody else may read it who may not
    read them. It gets its name when it is complete.
    """
    room, stem = folder.make_private(name, KIND), _core._own_stem(name)
    named = {} if stem == name else {NAME: name}
    try:
        if _write_edits(room, files, edits, named):
            room.move(NEW, room, JOURNAL)
            room.flush()
            folder.flush()
            fd = room.open(JOURNAL)
            if fd is not None:
                return Journal(folder, room, stem, fd)
    except BaseException:
        folder.remove_private(room)
        raise
    folder.remove_private(room)
    return None


def _write_edits(
    room: Folder, files: Sequence[File], edits: Iterable[Edit], named: dict[str, str]
) -> bool:
    """Writes the edits to a new file. Returns false, without the file, if they change nothing."""
    import numpy as np

    by_tensor = {name: file for file in files for name in file.handle}
    names = {file.name: file.identity for file in files}
    metadata = {"format": "safetensors-journal", "version": "1", "files": json.dumps(names)}
    metadata.update(named)
    is_changed = False
    with safe_create(room.target(NEW), metadata=metadata, fsync=True) as writer:
        for name, make in edits:
            file = by_tensor[name]
            meta = file.handle.get_tensor_meta(name)
            old = file.read(name)
            record, values, changed = _core._encode_patch(
                old, make(old), meta.dtype, meta.shape, set_values=True
            )
            if changed:
                is_changed = True
                writer.write(f"r/{name}", np.frombuffer(record, "u1"))
                writer.write(f"v/{name}", np.frombuffer(values, "u1"))
        if not is_changed:
            writer.abort()
    return is_changed

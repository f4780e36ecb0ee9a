"""The switch: replaces the files of a model by others as a whole (docs/format.md, "Switch")."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Optional

from . import _files, _recovery, _split
from ._core import SafetensorError

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Switch:
    """The switch file of a save, locked until commit() or abort()."""

    def __init__(self, folder: str, name: str) -> None:
        """Makes the file.

        Raises:
            SafetensorError: another process is saving a model with this name.
        """
        self._folder = folder
        self._name = name
        self._random = os.urandom(8).hex()
        self._path = os.path.join(folder, f".{name}.{self._random}.switch")
        self._content: Optional[_recovery.Content] = None
        self._fd = -1
        try:
            self._fd = os.open(self._path, _NEW_FILE, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks
                if not _files.lock(self._fd):
                    _recovery.refuse_busy(folder, name)
            # If two processes make a switch at the same time, at least one sees both and gives up.
            if _recovery.switches(folder, name) != [os.path.basename(self._path)]:
                _recovery.refuse_busy(folder, name)
        except BaseException:
            if not self.abort():  # interrupted as it was made
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            raise

    def path_of(self, part: str) -> str:
        """Returns the temporary path of a shard's five digits, or of "index"."""
        return os.path.join(self._folder, _recovery.temporary_name(self._name, self._random, part))

    def commit(self, shards: int, fsync: bool) -> None:
        """Makes the temporary files the model."""
        has_sums = os.path.lexists(self.path_of("sums"))
        files = _split.file_names(self._name, shards)
        index = _split.index_name(self._name)
        old = _recovery.old_files(self._folder, self._name)
        old.update(_recovery.identities(self._folder, files))
        durable = fsync or bool(old)
        if durable:
            for part in [*_recovery.parts_of(shards), *["sums"] * has_sums]:
                _files.flush(self.path_of(part))
        if shards == 1 and index not in old:  # one rename is atomic
            _recovery.remove_sums(self._folder, self._name)
            os.replace(self.path_of("00001"), os.path.join(self._folder, files[0]))
            _recovery.take_sums(self._folder, self._name, self._random)
            if fsync:
                _files.flush(self._folder)
            os.unlink(self._path)
        else:
            self._content = _recovery.Content(shards, old)
            self._fill(self._content, durable)
            self._take_places(self._content, durable)
        self._close()

    def abort(self) -> bool:
        """Removes the temporary files. Returns false if there is nothing to undo, or no way."""
        if self._fd < 0:
            return False
        try:
            if self._content is not None and not self._is_untouched(self._content):
                return False
            os.ftruncate(self._fd, 0)  # first: from here on, recovery removes them too
            _recovery.roll_back(self._folder, self._name, self._random)
        finally:
            self._close()
        return True

    def _fill(self, content: _recovery.Content, durable: bool) -> None:
        rest = memoryview(json.dumps(content._asdict()).encode())
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if durable:
            os.fsync(self._fd)
            _files.flush(self._folder)

    def _take_places(self, content: _recovery.Content, durable: bool) -> None:
        try:
            _recovery.roll_forward(self._folder, self._name, self._random, content, durable)
        except BaseException as error:
            if self._is_untouched(content):
                raise
            # A part of the old model is gone, so only the new one can still become whole.
            try:
                _recovery.roll_forward(self._folder, self._name, self._random, content, durable)
            except OSError as again:
                raise SafetensorError(
                    f"{self._folder}: the files of a save took their places only in part "
                    f"({again}); `safetensors recover` completes it"
                ) from error
            if not isinstance(error, OSError):
                raise

    def _is_untouched(self, content: _recovery.Content) -> bool:
        return _recovery.identities(self._folder, content.old) == content.old and all(
            os.path.lexists(self.path_of(part)) for part in _recovery.parts_of(content.shards)
        )

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

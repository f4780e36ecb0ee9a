"""The switch: replaces the files of a model by others as a whole (docs/format.md, "Switch")."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from .. import _core
from .._errors import failure
from . import folder as _folder
from . import recovery, split
from .folder import Folder

_TRIES = 100


class Switch:
    """The private folder of a save, whose switch is locked until commit() or abort()."""

    def __init__(self, folder: Folder, name: str) -> None:
        """Makes both.

        Raises:
            SafetensorError: another process, or another user, is saving a model with this name.
        """
        self._folder = folder
        self._name = name
        self._content: recovery.Content | None = None
        self.is_committed = False
        """Whether a file has taken its place, so that only the new model can become whole."""
        self._fd = -1
        self.parts = folder.make_private(name, recovery.KIND)
        """The private folder."""
        try:
            self._fd = self._make()
            with contextlib.suppress(OSError):  # a file system without locks
                if not _folder.lock(self._fd):
                    recovery.refuse_busy(folder, name)
            # If two processes make a switch at the same time, at least one sees both and gives up.
            if self._others() or self.parts.identity(recovery.SWITCH) is None:
                recovery.refuse_busy(folder, name)
        except BaseException:
            if not self.abort():  # interrupted as it was made
                folder.remove_private(self.parts)
            raise

    def _make(self) -> int:
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                self.parts.write(recovery.SWITCH, b"")
                fd = self.parts.open(recovery.SWITCH)
                if fd is not None:
                    return fd
            # While the folder is empty, a recovery may remove it, and so may another user who may
            # rename it.
            self.parts = self._folder.make_private(self._name, recovery.KIND)
        return recovery.refuse_busy(self._folder, self._name)

    def _others(self) -> list[str]:
        """Returns other saves of the model. One without a switch yet will see this one."""
        return [
            each.folder.name
            for each in recovery.saves_of(self._folder, self._name)
            if each.folder.name != self.parts.name
            and each.folder.identity(recovery.SWITCH) is not None
        ]

    def commit(self, shards: int, fsync: bool, companions: Sequence[str] = ()) -> None:
        """Makes the parts the model.

        Args:
            shards: how many there are.
            fsync: whether to flush all files, also if none is replaced.
            companions: the names of small files that are replaced, too.
        """
        folder, name = self._folder, self._name
        files = split.file_names(name, shards)
        index = split.index_name(name)
        old = recovery.old_files(folder, name)
        old.update(recovery.identities(folder, files))
        durable = fsync or bool(old)
        has_sums = self.parts.identity(recovery.SUMS) is not None
        if durable:
            small = [recovery.companion_part(file) for file in companions]
            for part in [*recovery.parts_of(shards), *small, *[recovery.SUMS] * has_sums]:
                _folder.flush(self.parts, part)
        if shards == 1 and index not in old and not companions:  # one rename is atomic
            recovery.remove_sums(folder, name)
            self.parts.move(recovery.shard_part(1), folder, files[0])
            self.is_committed = True
            if has_sums:
                self.parts.move(recovery.SUMS, folder, split.sums_name(name))
            if fsync:
                folder.flush()
            recovery.roll_back(folder, self.parts)
        else:
            self._content = recovery.Content(shards, old, self._inodes(shards), [*companions])
            self._fill(self._content, durable)
            self._take_places(self._content, durable)
            self.is_committed = True
        self._close()

    def abort(self) -> bool:
        """Removes the parts. Returns false if there is nothing to undo, or no way."""
        if self._fd < 0:
            return False
        try:
            if self._content is not None and not self._is_untouched(self._content):
                return False
            os.ftruncate(self._fd, 0)  # first: from here on, recovery removes them too
            if self._content is not None:
                self._show(False)
            recovery.roll_back(self._folder, self.parts)
        finally:
            self._close()
        return True

    def _inodes(self, shards: int) -> list[int]:
        found = recovery.identities(self.parts, recovery.parts_of(shards))
        return [found[part][2] for part in recovery.parts_of(shards)]

    def _fill(self, content: recovery.Content, durable: bool) -> None:
        if durable:
            self.parts.flush()  # first: a complete switch says that all parts are there
        fields = content._asdict()
        if _core._own_stem(self._name) != self._name:
            fields[recovery.NAME] = self._name
        rest = memoryview(json.dumps(fields).encode())
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._show(True)
        if durable:
            os.fsync(self._fd)
            self._folder.flush()

    def _show(self, is_complete: bool) -> None:
        """Shows other users, who cannot read the switch, whether it is complete."""
        with contextlib.suppress(OSError):  # a file system without the sticky bit
            os.fchmod(self.parts.fileno(), 0o1700 if is_complete else 0o700)

    def _take_places(self, content: recovery.Content, durable: bool) -> None:
        try:
            recovery.roll_forward(self._folder, self.parts, self._name, content, durable)
        except BaseException as error:
            if self._is_untouched(content):
                raise
            self.is_committed = True
            # A part of the old model is gone, so only the new one can still become whole.
            try:
                recovery.roll_forward(self._folder, self.parts, self._name, content, durable)
            except OSError as again:
                raise failure(
                    "incomplete_model",
                    f"{self._folder.path}: the files of a save took their places only in part "
                    f"({again}); `safetensors recover` completes it",
                    path=self._folder.path,
                ) from error
            if not isinstance(error, OSError):
                raise

    def _is_untouched(self, content: recovery.Content) -> bool:
        """Returns whether no file was removed or renamed: the old index is the first. Another
        program may have changed the old files, which is why the save is refused."""
        here = {*self.parts.names()}
        index = split.index_name(self._name)
        is_there = index not in content.old or self._folder.identity(index) is not None
        return is_there and here.issuperset(recovery.parts_of(content.shards))

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # first: a descriptor that is closed may be another's
        os.close(fd)

"""Binary file objects as targets of `safe_create`."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from typing import Any, NamedTuple


class _Place(NamedTuple):
    """Where a file begins in an object that seeks."""

    begin: int
    end: int
    """The end of the object before anything was written."""


class StreamTarget:
    """A binary file object as a target of `safe_create`."""

    def __init__(self, file: Any, place: _Place | None) -> None:
        self._file = file
        self._place = place
        self._begin = self._end = place.begin if place is not None else 0
        self._lock = threading.Lock()  # threads may write at once, but the object has one position
        self._is_undone = False
        self._has_old_length = False
        self.seeks = place is not None
        self.target: Any = self._write

    def _write(self, offset: int, view: memoryview) -> None:
        try:
            with self._lock:
                self._write_all(offset, view)
        finally:
            if self._is_undone:  # undo() did not wait
                self.undo()

    def _write_all(self, offset: int, view: memoryview) -> None:
        end = self._begin + offset + len(view)
        if self._is_undone:
            return  # the compiled module says that the writer is closed
        if self._place is not None:
            self._file.seek(self._begin + offset)
        while view:
            view = view[self._write_some(view) :]
        self._end = max(self._end, end)

    def _write_some(self, view: memoryview) -> int:
        """Writes the first bytes, and returns how many."""
        count: int | None = self._file.write(view)
        if count is None and not isinstance(self._file, io.RawIOBase):
            return len(view)  # some objects do not say: they have written all
        if not count:
            raise BlockingIOError(errno.EAGAIN, "the target takes no bytes now", str(self._file))
        return count

    def finish(self) -> None:
        """Leaves the object at the end of what was written."""
        if self._place is not None:
            self._file.seek(self._end)

    def undo(self) -> None:
        """Gives the object its old length and position. What was overwritten is lost.

        Does not wait for a thread that is writing: it does this when it ends.
        """
        self._is_undone = True
        if self._place is None or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._has_old_length:
                self._has_old_length = True  # once: then the object is its owner's again
                # What fails here leaves a part, whose header has a length of 0.
                with contextlib.suppress(Exception):
                    self._file.truncate(self._place.end)
                    self._file.seek(self._begin)
        finally:
            self._lock.release()


class _Descriptor(StreamTarget):
    """An unbuffered file, which the compiled module writes by its descriptor."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, None)
        self.seeks = True
        self.target = file.fileno()


def stream_target(file: Any) -> StreamTarget:
    if not hasattr(file, "write"):
        raise TypeError(
            "target is a path, a descriptor, a binary file object or a function, not "
            f"{type(file).__name__}"
        )
    if isinstance(file, io.TextIOBase):
        raise TypeError("target is open as text: open it in binary mode")
    if type(file) is io.FileIO:  # a derived class may have its own write()
        return _Descriptor(file)
    return StreamTarget(file, _place_of(file))


def _place_of(file: Any) -> _Place | None:
    """Returns the position of an object that can be written anywhere; None for others."""
    if "a" in str(getattr(file, "mode", "")):
        return None
    try:
        if not file.seekable():
            return None
        begin: int = file.tell()
    except (AttributeError, OSError):
        return None
    try:
        file.seek(0, os.SEEK_END)
        end: int = file.tell()
        file.seek(begin)
    except (OSError, TypeError, ValueError):  # a GzipFile says that it seeks
        return None
    return _Place(begin, end)

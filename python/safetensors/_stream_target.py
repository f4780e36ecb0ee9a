"""Binary file objects as targets of `safe_create`."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any, NamedTuple, Optional


class _Place(NamedTuple):
    """Where a file begins in an object that seeks."""

    begin: int
    end: int
    """The end of the object before anything was written."""


class StreamTarget:
    """A binary file object as a target of `safe_create`."""

    def __init__(self, file: Any, place: Optional[_Place]) -> None:
        self._file = file
        self._place = place
        self._begin = self._position = self._end = place.begin if place is not None else 0
        self.seeks = place is not None
        self.target: Any = self._write

    def _write(self, offset: int, view: memoryview) -> None:
        position = self._begin + offset
        if position != self._position:
            self._file.seek(position)
        while view:
            count = self._file.write(view)
            if count is None:  # some objects do not say: they have written all
                count = len(view)
            view = view[count:]
            position += count
        self._position = position
        self._end = max(self._end, position)

    def finish(self) -> None:
        """Leaves the object at the end of what was written."""
        if self._position != self._end:
            self._file.seek(self._end)

    def undo(self) -> None:
        """Gives the object its old length and position. What was overwritten is lost."""
        if self._place is None:
            return
        # What fails here leaves a part, whose header has a length of 0.
        with contextlib.suppress(Exception):
            self._file.truncate(self._place.end)
            self._file.seek(self._begin)


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
    if isinstance(file, io.FileIO):
        return _Descriptor(file)
    return StreamTarget(file, _place_of(file))


def _place_of(file: Any) -> Optional[_Place]:
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

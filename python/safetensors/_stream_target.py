"""Binary file objects as targets of `safe_create`."""

from __future__ import annotations

import io
from typing import Any, Optional


class StreamTarget:
    """A binary file object as a target of `safe_create`."""

    def __init__(self, file: Any, begin: Optional[int]) -> None:
        self._file = file
        self._begin = begin
        self._position = begin or 0
        self._end = begin or 0
        self.seeks = begin is not None
        self.target: Any = self._write

    def _write(self, offset: int, view: memoryview) -> None:
        position = (self._begin or 0) + offset
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
        """Cuts the object back to where it began."""
        if self._begin is not None:
            self._file.seek(self._begin)
            self._file.truncate()


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
    return StreamTarget(file, _position_of(file))


def _position_of(file: Any) -> Optional[int]:
    """Returns the position of an object that can be written anywhere; None for others."""
    # A GzipFile says that it seeks, but does not seek back.
    if type(file).__module__ == "gzip" or "a" in str(getattr(file, "mode", "")):
        return None
    try:
        if not file.seekable():
            return None
        position: int = file.tell()
    except (AttributeError, OSError):
        return None
    return position

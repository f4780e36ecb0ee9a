"""Readers of one file in several processes, of which one reads the header for all."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._range_reader import fill
from . import errors


class Start(NamedTuple):
    """What the process that reads the header tells the others."""

    size: int
    version: str
    first: bytes
    """The first bytes of the file, with its header."""


class Leader:
    """A reader that remembers the first bytes that it has read."""

    def __init__(self, reader: Any) -> None:
        self.name: str = reader.name
        self._reader = reader
        self._size = 0
        self._first = bytearray()
        self._is_open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def open(self, nbytes: int) -> tuple[int, Any]:
        """Returns the size of the file and its first bytes."""
        self._size, first = self._reader.open(nbytes)
        self._first += first
        return self._size, first

    def read(self, offset: int, nbytes: int) -> Any:
        """Returns these bytes."""
        if offset + nbytes <= len(self._first):
            return bytes(self._first[offset : offset + nbytes])
        data = self._reader.read(offset, nbytes)
        if self._is_open and offset == len(self._first):  # the rest of a long header
            self._first += data
        return data

    def _safetensors_fill(self, offset: int, view: memoryview) -> bool:
        is_known = self._is_open or offset + len(view) <= len(self._first)
        return not is_known and fill(self._reader, offset, view)

    def start(self) -> Start:
        """Returns what the other processes need. Called when the header was read."""
        self._is_open = False
        return Start(self._size, self._reader.version(), bytes(self._first))


class Follower:
    """A reader that takes the first bytes from another process. They cost a request of one byte,
    which makes sure that the file is the same one."""

    def __init__(self, reader: Any, start: Start) -> None:
        self.name: str = reader.name
        self._reader = reader
        self._start = start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def open(self, nbytes: int) -> tuple[int, Any]:
        """Returns the size of the file and its first bytes.

        Raises:
            SafetensorError: this process reaches another version of the file.
        """
        self._reader.open(1)
        version = self._reader.version()
        if version != self._start.version:
            raise errors.changed(self.name, self._start.version, version)
        return self._start.size, self._start.first[:nbytes]

    def read(self, offset: int, nbytes: int) -> Any:
        """Returns these bytes."""
        first = self._start.first
        if offset + nbytes <= len(first):
            return memoryview(first)[offset : offset + nbytes]
        return self._reader.read(offset, nbytes)

    def _safetensors_fill(self, offset: int, view: memoryview) -> bool:
        is_known = offset + len(view) <= len(self._start.first)
        return not is_known and fill(self._reader, offset, view)

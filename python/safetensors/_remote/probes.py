"""Finds out which files of a folder behind a URL exist, by asking for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from .. import _json
from .._core import SafetensorError
from .._range_reader import RangeReader
from .._workers import Workers
from . import errors
from .http import HttpReader

_FIRST_OF_FILE = 512 << 10
# An index of up to this size is one request.
_FIRST_OF_INDEX = 16 << 20
# Of an index beside a single file: whether one of its files exists is asked for so many.
_MAX_ASKED = 1000
_AT_ONCE = 16


class Found(NamedTuple):
    """A file that exists."""

    reader: RangeReader
    """Was opened."""
    size: int
    first: Any
    """The first bytes; all of an index."""


class Probes:
    """The files that were asked for in one folder."""

    def __init__(self, reader: Callable[[str], RangeReader]) -> None:
        """`reader` returns the reader of a file by its name, whose open() was not called yet."""
        self._reader = reader
        self.found: dict[str, Found] = {}
        self.denied: SafetensorError | None = None
        """The first answer that denies a file. Stores answer so for a missing file if the folder
        may not be listed."""
        self._files: list[str] = []
        self._absent: dict[str, SafetensorError] = {}

    def ask(self, names: Sequence[str], first_nbytes: int = _FIRST_OF_FILE) -> None:
        """Opens files at once; of an index, reads all. Files that do not exist are no error."""
        if not names:
            return
        readers = {name: self._reader(name) for name in names}
        with Workers(min(_AT_ONCE, len(names))) as pool:
            try:
                asked = {
                    name: pool.submit(_opened, name, reader, first_nbytes)
                    for name, reader in readers.items()
                }
                answers = {name: future.result() for name, future in asked.items()}
            except BaseException:  # Ctrl-C, or an answer that says nothing about the file
                for reader in readers.values():
                    getattr(reader, "cancel", lambda: None)()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for name, answer in answers.items():
            if isinstance(answer, Found):
                self.found[name] = answer
                continue
            self._absent[name] = answer
            if isinstance(answer, PermissionError) and self.denied is None:
                self.denied = answer

    def index(self, name: str) -> Found:
        """Returns an index, which is read unless it was asked for."""
        if name not in self.found:
            self.ask([name])
        if name not in self.found:
            raise self._absent[name]
        return self.found[name]

    def will_ask(self, files: Sequence[str]) -> None:
        """Takes the files for which exists() is called, in this order."""
        self._files = [*files]

    def exists(self, name: str) -> bool:
        """Returns whether a file exists.

        Raises:
            SafetensorError: this is not known, because the server denies it, or too many would have
                to be asked for.
        """
        if name in self.found:
            return True
        if name not in self._absent:
            at = self._files.index(name)
            if at >= _MAX_ASKED:
                what = f"is one of {len(self._files):,} files of an index beside a single file"
                raise errors.failed(name, f"{what}: name the index or the file")
            # Mostly the first one exists, or none.
            more = self._files[at : at + (_AT_ONCE if at else 1)]
            self.ask([each for each in more if each not in self.found], 1)
        error = self._absent.get(name)
        if isinstance(error, PermissionError):
            raise error
        return error is None


def _opened(name: str, reader: RangeReader, nbytes: int) -> Found | SafetensorError:
    """Returns an open file, or the error of one that does not exist or is denied."""
    try:
        if name.endswith(".json"):
            return _read(reader)
        return Found(reader, *reader.open(nbytes))
    except (FileNotFoundError, PermissionError) as error:
        return cast(SafetensorError, error)


def _read(reader: RangeReader) -> Found:
    """Reads all bytes of an index."""
    try:
        size: int
        first: Any
        if isinstance(reader, HttpReader):
            size, first = reader.open(_FIRST_OF_INDEX, _json.MAX_NBYTES)
        else:
            size, first = reader.open(_FIRST_OF_INDEX)
        if size > _json.MAX_NBYTES:
            raise errors.failed(reader.name, f"has {size} bytes; an index has at most 100 MB")
        data = bytes(first)
        if len(data) < size:
            data += reader.read(len(data), size - len(data))
        return Found(reader, size, data)
    finally:
        getattr(reader, "close", lambda: None)()


def read_index(reader: RangeReader) -> bytes:
    """Returns all bytes of an index. Raises what reading raises."""
    return cast(bytes, _read(reader).first)

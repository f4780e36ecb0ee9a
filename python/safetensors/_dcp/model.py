"""The files of a model whose tensors are known, made in full size before they are written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import _extra
from .._errors import failure
from .._reading import LENGTH_NBYTES
from .._saving import split
from .._saving.folder import Folder
from .._saving.model_files import ModelFiles
from .._saving.specs import Row, nbytes_of
from .._saving.writer_state import ABORTED, CLOSED, WriterState, closed_error
from .._typing import Path


class FullSizePart(NamedTuple):
    """A part of its final size, as any process of the user finds it."""

    folder: str
    """The name of the private folder that it is in."""
    folder_inode: int
    name: str
    nbytes: int
    inode: int

    def open(self, folder: Folder) -> int:
        """Opens the file for writing; returns a descriptor, which the caller closes.

        Raises:
            SafetensorError: the folder of the model, as this process finds it, has another one.
        """
        path = os.path.join(folder.path, self.folder, self.name)
        parts = folder.open_private(self.folder, self.folder_inode)
        fd = parts.open(self.name) if parts is not None else None
        if fd is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        status = os.fstat(fd)
        if (status.st_size, status.st_ino) != (self.nbytes, self.inode):
            os.close(fd)
            raise failure(
                "file_changed",
                f"{path} is not the file of {self.nbytes:,} bytes that the coordinator made: the "
                "ranks do not find the same file",
                path=path,
            )
        return fd


class Place(NamedTuple):
    """Where a tensor is."""

    file: int
    """The index of its file."""
    begin: int
    nbytes: int


class Options(NamedTuple):
    """What the caller may choose of a model's files."""

    max_shard_size: int | str
    name: str
    fsync: bool
    indices: dict[str, int] | None
    """The number of the file of each tensor, from 1 on."""


class FullSizeModel:
    """The files of a model that is written at any offsets, by any number of processes.

    Each file begins with 8 zero bytes instead of the header's length until `commit`, so that no
    reader takes it for a complete one.

    Thread safety: any threads may call `commit` and `abort` at once. One of them does its work, and
    the others wait for it.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], options: Options) -> None:
        """Makes the files. See ModelFiles."""
        by_name = {row[0]: row for row in rows}
        nbytes = nbytes_of(rows)
        if options.indices is None:
            self._split = split.split(nbytes, options.max_shard_size)
        else:
            self._split = _split_by_index(nbytes, options.indices)
        self.files: list[FullSizePart] = []
        self.places: dict[str, Place] = {}
        self._lengths: list[bytes] = []
        self._state = WriterState()
        self._files = ModelFiles(folder, options.name, options.fsync)
        try:
            for names in self._split.shards:
                self._create([by_name[name] for name in names])
        except BaseException:
            self.abort()
            raise

    @property
    def replaces(self) -> bool:
        """Whether there is an old model."""
        return self._files.rights_of is not None

    def open(self, index: int) -> int:
        """Opens a file for writing; returns a descriptor, which the caller closes."""
        fd = self._files.parts.open(self.files[index].name)
        if fd is None:
            raise failure(
                "file_changed",
                f"{self._files.parts.path}: a part was removed",
                path=self._files.parts.path,
            )
        return fd

    def commit(self, written: Mapping[str, int]) -> list[str]:
        """Makes the files the model, and returns their paths.

        Args:
            written: the bytes that were written of each tensor.

        If it raises, everything that was written is removed, or `recover` completes the model: see
        ModelFiles.commit.

        Raises:
            SafetensorError: a tensor was not written as a whole, or the files were removed, or
                became the model, before.
        """
        paths = self._state.close(lambda: self._commit(written), self._give_up)
        if paths is None:
            raise closed_error()
        return paths

    def abort(self) -> None:
        """Removes everything that was written. Does nothing after `commit`."""
        self._state.abort(self._files.abort)

    def _commit(self, written: Mapping[str, int]) -> list[str]:
        check_written({name: place.nbytes for name, place in self.places.items()}, written)
        for index, length in enumerate(self._lengths):
            fd = self.open(index)
            try:
                os.pwrite(fd, length, 0)
            finally:
                os.close(fd)
            # Last: a file that may not be written could not be opened by the ranks.
            if self._files.rights_of is not None:
                self._files.parts.take_rights(self.files[index].name, self._files.rights_of)
        return self._files.commit(self._split)

    def _give_up(self, error: BaseException) -> str:
        is_committed = self._files.is_committed
        with contextlib.suppress(OSError):  # the error in flight says more
            self._files.abort()
        return CLOSED if is_committed else ABORTED

    def _create(self, rows: list[Row]) -> None:
        prologue, places = _extra._plan_layout(rows, {"format": "pt"}, "canonical")
        index = len(self.files)
        for row, (begin, nbytes) in zip(rows, places, strict=True):
            self.places[row[0]] = Place(index, begin, nbytes)
        start = bytes(LENGTH_NBYTES) + prologue[LENGTH_NBYTES:]
        total = max([begin + nbytes for begin, nbytes in places], default=len(prologue))
        parts, name = self._files.parts, self._files.temporary(index + 1).name
        parts.write(name, start)
        parts.resize(name, total)
        self.files.append(FullSizePart(parts.name, parts.inode, name, total, 0))
        fd = self.open(index)
        try:
            self.files[index] = self.files[index]._replace(inode=os.fstat(fd).st_ino)
        finally:
            os.close(fd)
        self._lengths.append(prologue[:LENGTH_NBYTES])


def check_written(expected: Mapping[str, int], written: Mapping[str, int]) -> None:
    """Raises if not all bytes of a tensor were written."""
    for name, nbytes in expected.items():
        found = written.get(name, 0)
        if found != nbytes:
            raise failure(
                "missing_tensors",
                f"Error while serializing: {found:,} bytes were written of tensor `{name}`, which "
                f"has {nbytes:,}",
                subject=name,
            )


def _split_by_index(nbytes: dict[str, int], indices: Mapping[str, int]) -> split.Split:
    missing = next((name for name in nbytes if name not in indices), None)
    if missing is not None:
        raise failure(
            "invalid_argument",
            f"fqn_to_index_mapping has no file for tensor `{missing}`",
            subject=missing,
        )
    numbers = {indices[name] for name in nbytes}
    for name in nbytes:
        if indices[name] < 1:
            raise ValueError(f"fqn_to_index_mapping counts files from 1: {name!r} is below")
    gap = next((i for i in range(1, len(numbers) + 1) if i not in numbers), None)
    if gap is not None:
        raise ValueError(f"fqn_to_index_mapping has no tensor for file {gap}")
    shards: list[list[str]] = [[] for _ in range(max(1, len(numbers)))]
    for name in nbytes:
        shards[indices[name] - 1].append(name)
    return split.Split(shards, sum(nbytes.values()))

"""The files of a model whose tensors are known, made in full size before they are written."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from .. import _core, _split
from .._core import SafetensorError
from .._model_files import ModelFiles
from .._specs import Row, nbytes_of
from .._typing import Path

_LENGTH_NBYTES = 8
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class File(NamedTuple):
    """A temporary file of its final size."""

    name: str
    nbytes: int


class Place(NamedTuple):
    """Where a tensor is."""

    file: int
    """The index of its file."""
    begin: int
    nbytes: int


class Options(NamedTuple):
    """What the caller may choose of a model's files."""

    max_shard_size: Union[int, str]
    name: str
    fsync: bool
    indices: Optional[Dict[str, int]]
    """The number of the file of each tensor, from 1 on."""


class FullSizeModel:
    """The files of a model that is written at any offsets, by any number of processes.

    Each file begins with 8 zero bytes instead of the header's length until `commit`, so that no
    reader takes it for a complete one.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], options: Options) -> None:
        """Makes the files. See ModelFiles."""
        by_name = {row[0]: row for row in rows}
        nbytes = nbytes_of(rows)
        if options.indices is None:
            self._split = _split.split(nbytes, options.max_shard_size)
        else:
            self._split = _split_by_index(nbytes, options.indices)
        self.folder = os.path.abspath(os.fsdecode(folder))
        self.files: List[File] = []
        self.places: Dict[str, Place] = {}
        self._lengths: List[bytes] = []
        self._modes: List[int] = []
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

    def path(self, file: File) -> str:
        return os.path.join(self.folder, file.name)

    def commit(self, written: Mapping[str, int]) -> List[str]:
        """Makes the files the model, and returns their paths.

        Args:
            written: the bytes that were written of each tensor.

        Raises:
            SafetensorError: a tensor was not written as a whole.
        """
        check_written({name: place.nbytes for name, place in self.places.items()}, written)
        for file, length, mode in zip(self.files, self._lengths, self._modes, strict=True):
            with open(self.path(file), "r+b") as out:
                out.write(length)
                if stat.S_IMODE(os.fstat(out.fileno()).st_mode) != mode:
                    os.fchmod(out.fileno(), mode)
        return self._files.commit(self._split)

    def abort(self) -> None:
        """Removes everything that was written. Does nothing after `commit`."""
        self._files.abort()

    def _create(self, rows: List[Row]) -> None:
        prologue, places = _core._plan_layout(rows, {"format": "pt"}, "canonical")
        index = len(self.files)
        for row, (begin, nbytes) in zip(rows, places, strict=True):
            self.places[row[0]] = Place(index, begin, nbytes)
        path = self._files.temporary(index + 1)
        start = bytes(_LENGTH_NBYTES) + prologue[_LENGTH_NBYTES:]
        _core._write_file(path, start, False, self._files.rights_of)
        total = max([begin + nbytes for begin, nbytes in places], default=len(prologue))
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if not mode & stat.S_IWUSR:  # as the old model's file; the ranks open it by its name
            os.chmod(path, mode | stat.S_IWUSR)
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _reserve(fd, total, path)
        finally:
            os.close(fd)
        self.files.append(File(os.path.basename(path), total))
        self._lengths.append(prologue[:_LENGTH_NBYTES])
        self._modes.append(mode)


def check_written(expected: Mapping[str, int], written: Mapping[str, int]) -> None:
    """Raises if not all bytes of a tensor were written."""
    for name, nbytes in expected.items():
        found = written.get(name, 0)
        if found != nbytes:
            raise SafetensorError(
                f"Error while serializing: {found:,} bytes were written of tensor `{name}`, which "
                f"has {nbytes:,}"
            )


def _split_by_index(nbytes: Dict[str, int], indices: Mapping[str, int]) -> _split.Split:
    missing = next((name for name in nbytes if name not in indices), None)
    if missing is not None:
        raise SafetensorError(f"fqn_to_index_mapping has no file for tensor `{missing}`")
    numbers = {indices[name] for name in nbytes}
    for name in nbytes:
        if indices[name] < 1:
            raise ValueError(f"fqn_to_index_mapping counts files from 1: {name!r} is below")
    gap = next((i for i in range(1, len(numbers) + 1) if i not in numbers), None)
    if gap is not None:
        raise ValueError(f"fqn_to_index_mapping has no tensor for file {gap}")
    shards: List[List[str]] = [[] for _ in range(max(1, len(numbers)))]
    for name in nbytes:
        shards[indices[name] - 1].append(name)
    return _split.Split(shards, sum(nbytes.values()))


def _reserve(fd: int, nbytes: int, path: str) -> None:
    """Gives a file its size, and disk space where the file system can reserve it."""
    # Not os.posix_fallocate: glibc emulates it by writing to every block.
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is not None:
        found = fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(nbytes))
        number = ctypes.get_errno()
        if found != 0 and number in _NO_SPACE:
            raise OSError(number, os.strerror(number), path)
    os.truncate(fd, nbytes)

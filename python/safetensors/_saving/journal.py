"""The journals of changes in place: completes a change, also after a crash.

docs/format.md, "Changes in place", describes the file, the steps and the recovery. What is read
here, the journal and the files that it names, may come from anyone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from .. import _core, _json
from .._checking.sums import path_of
from .._core import SafetensorError, safe_open
from .._errors import failure
from .._reading import read_all
from .folder import NOT_FOLLOWED, Folder, Foreign, lock, refuse

KIND = "journal"
JOURNAL = "journal"
NEW = "new"
"""The name of a journal that is being written."""
NAME = "name"
"""The key of a journal's metadata that has its NAME, if its folder's name has a part of it."""

_MARK = 0x80
"""The highest bit of the last of the 8 bytes that are the header's length."""
_MARKED_BYTE = 7
_WRITE_NBYTES = 1 << 20


class Recovered(NamedTuple):
    """What the recovery of a folder's journals did."""

    outcomes: list[bool]
    """For each journal, whether the files have the new tensors now."""
    foreign: list[Foreign]
    """What was left alone."""


def recover_files(folder: Folder, only: Collection[str] | None = None) -> Recovered:
    """Completes changes that were interrupted, and removes their journals.

    Args:
        folder: where the journals are.
        only: if given, only the journals of these files or indexes.
    """
    outcomes = []
    stems = None if only is None else {_core._own_stem(each) for each in only}
    found, foreign = folder.private_folders(KIND, {JOURNAL, NEW})
    for stem, room in found:
        is_named = stems is None or stem in stems
        with contextlib.ExitStack() as stack:
            fd = room.open(JOURNAL)
            if fd is None:
                if is_named and not room.is_used():
                    folder.remove_private(room)
                    outcomes.append(False)
                continue
            try:
                journal = stack.enter_context(Journal(folder, room, stem, fd))
            except SafetensorError:
                if is_named:
                    raise
                continue  # of another program, perhaps
            if is_named or not {*journal.files}.isdisjoint(only or ()):
                outcomes.append(_recover(journal, stack))
    left_alone = [Foreign(*each) for each in foreign]
    return Recovered(outcomes, [each for each in left_alone if stems is None or each.stem in stems])


def _recover(journal: Journal, stack: contextlib.ExitStack) -> bool:
    files = []
    for name, identity in journal.files.items():
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(File(journal.folder, name))
            if file.identity == identity:
                files.append(file)
            elif file.is_marked:
                refuse(journal.path, f"{name} was being changed, but by another journal")
    if any(file.is_marked for file in files):
        finish(journal, [file for file in files if file.is_marked or file.is_known(journal)])
        return True
    # Nothing was changed yet, or everything was.
    is_done = bool(files) and all(file.has(journal) for file in files)
    journal.remove()
    return is_done


class Journal:
    """A complete journal. Read by its descriptor, so that it stays the file that was checked."""

    files: dict[str, Any]
    """The identities of the files that it names."""

    def __init__(self, folder: Folder, room: Folder, stem: str, fd: int) -> None:
        """Takes the descriptor of the journal in a private folder with this stem."""
        self.folder = folder
        self.path = os.path.join(room.path, JOURNAL)
        self._room, self._fd = room, fd
        try:
            self.tensors = safe_open(_Descriptor(self.path, fd), framework="numpy")
            metadata = self.tensors.metadata() or {}
            self.files = _names_in(self.path, metadata)
            self.name = metadata.get(NAME, stem)
            """The index, or the first file."""
            if not _is_name(self.name) or _core._own_stem(self.name) != stem:
                refuse(self.path, f"it is about {self.name[:100]!r}, and its folder about {stem!r}")
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.tensors.close()
        os.close(self._fd)

    @property
    def is_there(self) -> bool:
        return self._room.identity(JOURNAL) is not None

    def remove(self) -> None:
        """Removes it with its folder. May be called again."""
        self._room.remove(JOURNAL)
        self.folder.remove_private(self._room)
        self.folder.flush()


class File:
    """A file that is changed in place. Locked until it is closed."""

    handle: safe_open
    """Has the names, dtypes and shapes of its tensors."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.name = name
        self.path = path = os.path.join(folder.path, name)
        try:
            # As os.open() does, so that arrays which are views of the file become copies.
            sys.audit("open", path, None, os.O_RDWR)
            fd = folder.open(name, own=False)
        except BlockingIOError:  # it has a write lease
            refuse_in_place(path, "another process is changing it")
        except SafetensorError as error:
            if isinstance(error, OSError):
                raise
            refuse_in_place(path, str(error).partition(NOT_FOLLOWED)[0])
        if fd is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.fd = fd
        try:
            status = os.fstat(self.fd)
            if status.st_nlink > 1:
                refuse_in_place(path, "it has several names (hard links)")
            if not lock(self.fd):
                refuse_in_place(path, "another process is changing it")
            self.nbytes = status.st_size
            self.is_marked = bool(_pread(self.fd, 8, 0)[7] >> 7)
            unmarked = _Unmarked(path, self.fd)
            self.handle = safe_open(unmarked, framework="numpy")
            self.data_begin = _core._data_begin(self.handle)
            header = unmarked.read(0, self.data_begin)
            self.identity = [self.nbytes, _core._xxh3_128(header)]
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.close()
        os.close(self.fd)

    def read(self, name: str) -> bytes:
        """Returns the bytes of a tensor."""
        begin, end = self.handle.get_tensor_meta(name).data_offsets
        return _pread(self.fd, end - begin, self.data_begin + begin)

    def write(self, name: str, old: bytes, new: bytearray) -> None:
        """Writes those bytes of a tensor that differ."""
        begin = self.data_begin + self.handle.get_tensor_meta(name).data_offsets[0]
        was = memoryview(old)
        now = memoryview(new)
        for at in range(0, len(new), _WRITE_NBYTES):
            piece = now[at : at + _WRITE_NBYTES]
            if piece != was[at : at + _WRITE_NBYTES]:
                _pwrite(self.fd, piece, begin + at)

    def set_mark(self, is_marked: bool) -> None:
        byte = _pread(self.fd, 1, _MARKED_BYTE)[0] & ~_MARK
        _pwrite(self.fd, bytes([byte | _MARK * is_marked]), _MARKED_BYTE)

    def records(self, journal: Journal) -> Iterator[tuple[str, Any]]:
        """Yields the names and the records of those tensors of the journal that the file has."""
        for name in self.handle:
            if f"r/{name}" in journal.tensors:
                record, values = (journal.tensors.get_tensor(f"{kind}/{name}") for kind in "rv")
                meta = self.handle.get_tensor_meta(name)
                label = f"{self.path}: tensor `{name}`"
                found = _core._PatchRecord(record, values, meta.dtype, "xxh3-128", label)
                if found.kind != "blocks" or list(found.shape) != meta.shape:
                    refuse(self.path, f"the journal has another tensor `{name}`")
                yield name, found

    def has(self, journal: Journal) -> bool:
        """Returns whether the tensors are as they are after the change."""
        return all(self.digest(name) == record.target for name, record in self.records(journal))

    def is_known(self, journal: Journal) -> bool:
        """Returns whether each tensor is as before the change or as after it."""
        return all(
            self.digest(name) in (record.base, record.target)
            for name, record in self.records(journal)
        )

    def digest(self, name: str) -> str:
        meta = self.handle.get_tensor_meta(name)
        hasher = _core._TensorHasher(meta.dtype, meta.shape, 0)
        hasher.update(self.read(name))
        return hasher.digest()


class _Descriptor:
    """Reads an open file."""

    def __init__(self, path: str, fd: int) -> None:
        self.name, self._fd, self._nbytes = path, fd, os.fstat(fd).st_size

    def open(self, nbytes: int) -> tuple[int, bytes]:
        return self._nbytes, self.read(0, min(nbytes, self._nbytes))

    def read(self, offset: int, nbytes: int) -> bytes:
        return _pread(self._fd, nbytes, offset)


class _Unmarked(_Descriptor):
    """Reads a file as it is without its mark."""

    def read(self, offset: int, nbytes: int) -> bytes:
        data = bytearray(super().read(offset, nbytes))
        if offset <= _MARKED_BYTE < offset + nbytes:
            data[_MARKED_BYTE - offset] &= ~_MARK
        return bytes(data)


def finish(journal: Journal, files: Sequence[File]) -> None:
    """Does what the journal says, and removes it. May be called again after it was interrupted."""
    for file in files:
        for _ in file.records(journal):  # which raises if a record is damaged
            pass
    _remove_sums(journal, files)
    for file in files:
        file.set_mark(True)
    for file in files:
        os.fsync(file.fd)
    for file in files:
        for name, record in file.records(journal):
            old = file.read(name)
            new = bytearray(old)
            record.overwrite(new)
            file.write(name, old, new)
    for file in files:
        os.fsync(file.fd)
    for file in files:
        if not file.has(journal):
            raise failure(
                "io", f"{file.path}: the bytes on the disk are not those written", path=file.path
            )
    for file in files:
        file.set_mark(False)
    for file in files:
        os.fsync(file.fd)
    journal.remove()


def _remove_sums(journal: Journal, files: Sequence[File]) -> None:
    """Removes the sums of the files, and of the index that the journal is named after."""
    for file in files:
        _core._remove_sums(file.path)
    journal.folder.remove(path_of(journal.name))


def _names_in(journal: str, metadata: dict[str, str]) -> dict[str, Any]:
    """Returns the identities of the files that a journal names."""
    try:
        names = _json.loads(metadata.get("files", ""), journal, has_file_names=True)
    except (ValueError, RecursionError):
        names = None
    kind = (metadata.get("format"), metadata.get("version"))
    if kind != ("safetensors-journal", "1") or not isinstance(names, dict) or not names:
        refuse(journal, "it is not a journal")
    for name in names:
        if not _is_name(name):
            refuse(journal, f"it names {name[:100]!r}, which is not in its folder")
    return names


def _is_name(name: str) -> bool:
    """Returns whether it is the name of a file in a folder."""
    return (
        bool(name)
        and os.path.basename(name) == name
        and "\0" not in name
        and name not in (".", "..")
    )


def _pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Reads exactly these bytes."""
    try:
        return read_all(lambda begin, left: os.pread(fd, left, begin), offset, nbytes)
    except EOFError:
        raise OSError(errno.EIO, "the file has become shorter") from None


def _pwrite(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def refuse_in_place(path: str, reason: str) -> NoReturn:
    raise failure("invalid_argument", f"{path} is not changed in place: {reason}", path=path)

"""The journals of changes in place: completes a change, also after a crash.

docs/format.md, "Changes in place", describes the file, the steps and the recovery. What is read
here, the journal and the files that it names, may come from anyone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from typing import (
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

from . import _core
from ._core import SafetensorError, safe_open
from ._files import check_own, flush, lock, open_untrusted, refuse
from ._sums import path_of

JOURNAL = re.compile(r"\.([^/\\]+)\.journal")

_MARK = 0x80
"""The highest bit of the last of the 8 bytes that are the header's length."""
_MARKED_BYTE = 7
_WRITE_NBYTES = 1 << 20


def recover_files(folder: str, only: Optional[Collection[str]] = None) -> List[bool]:
    """Completes changes that were interrupted, and removes their journals.

    Returns for each journal whether the files have the new tensors now.

    Args:
        folder: where the journals are.
        only: if given, only the journals of these files or indexes.
    """
    outcomes = []
    for each in sorted(os.listdir(folder)):
        match = JOURNAL.fullmatch(each)
        if match is None:
            continue
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            journal = os.path.join(folder, each)
            try:
                names = _names_in(journal)
            except SafetensorError:
                if only is not None and match[1] not in only:
                    continue  # of another program, perhaps
                raise
            if only is None or not {match[1], *names}.isdisjoint(only):
                outcomes.append(_recover(journal, names, stack))
    return outcomes


def _recover(journal: str, names: Dict[str, Any], stack: contextlib.ExitStack) -> bool:
    files = []
    for name, identity in names.items():
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(File(os.path.join(os.path.dirname(journal), name)))
            if file.identity == identity:
                files.append(file)
            elif file.is_marked:
                refuse(journal, f"{name} was being changed, but by another journal")
    with safe_open(journal, framework="numpy", backend="pread") as opened:
        if any(file.is_marked for file in files):
            files = [file for file in files if file.is_marked or file.is_known(opened)]
        else:  # nothing was changed yet, or everything was
            is_done = bool(files) and all(file.has(opened) for file in files)
            os.unlink(journal)
            return is_done
    finish(journal, files)
    return True


class File:
    """A file that is changed in place. Locked until it is closed."""

    handle: safe_open
    """Has the names, dtypes and shapes of its tensors."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd = open_untrusted(path)
        except BlockingIOError:  # it has a write lease
            refuse_in_place(path, "another process is changing it")
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            refuse_in_place(path, "it is a symbolic link")
        try:
            status = os.fstat(self.fd)
            if not stat.S_ISREG(status.st_mode):
                refuse_in_place(path, "it is not a regular file")
            if status.st_nlink > 1:
                refuse_in_place(path, "it has several names (hard links)")
            if not lock(self.fd):
                refuse_in_place(path, "another process is changing it")
            self.nbytes = status.st_size
            length = int.from_bytes(_pread(self.fd, 8, 0), "little")
            self.is_marked = bool(length >> 63)
            self.handle = safe_open(_Unmarked(self), framework="numpy")
            self.data_begin = 8 + (length & ~(1 << 63))
            header = bytes(_Unmarked(self).read(0, self.data_begin))
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
        was, now = memoryview(old), memoryview(new)
        for at in range(0, len(new), _WRITE_NBYTES):
            piece = now[at : at + _WRITE_NBYTES]
            if piece != was[at : at + _WRITE_NBYTES]:
                _pwrite(self.fd, piece, begin + at)

    def set_mark(self, is_marked: bool) -> None:
        byte = _pread(self.fd, 1, _MARKED_BYTE)[0] & ~_MARK
        _pwrite(self.fd, bytes([byte | _MARK * is_marked]), _MARKED_BYTE)

    def records(self, journal: safe_open) -> Iterator[Tuple[str, Any]]:
        """Yields the names and the records of those tensors of the journal that the file has."""
        for name in self.handle:
            if f"r/{name}" in journal:
                record, values = (journal.get_tensor(f"{kind}/{name}") for kind in "rv")
                meta = self.handle.get_tensor_meta(name)
                label = f"{self.path}: tensor `{name}`"
                found = _core._PatchRecord(record, values, meta.dtype, "xxh3-128", label)
                if found.kind != "blocks" or list(found.shape) != meta.shape:
                    refuse(self.path, f"the journal has another tensor `{name}`")
                yield name, found

    def has(self, journal: safe_open) -> bool:
        """Returns whether the tensors are as they are after the change."""
        return all(self.digest(name) == record.target for name, record in self.records(journal))

    def is_known(self, journal: safe_open) -> bool:
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


class _Unmarked:
    """Reads a file as it is without its mark."""

    def __init__(self, file: File) -> None:
        self.name, self._fd, self._nbytes = file.path, file.fd, file.nbytes

    def open(self, nbytes: int) -> Tuple[int, bytes]:
        return self._nbytes, self.read(0, min(nbytes, self._nbytes))

    def read(self, offset: int, nbytes: int) -> bytes:
        data = bytearray(_pread(self._fd, nbytes, offset))
        if offset <= _MARKED_BYTE < offset + nbytes:
            data[_MARKED_BYTE - offset] &= ~_MARK
        return bytes(data)


def finish(journal: str, files: Sequence[File]) -> None:
    """Does what the journal says, and removes it. May be called again after it was interrupted."""
    with safe_open(journal, framework="numpy", backend="pread") as opened:
        for file in files:
            for _ in file.records(opened):  # which raises if a record is damaged
                pass
        _remove_sums(journal, files)
        for file in files:
            file.set_mark(True)
        for file in files:
            os.fsync(file.fd)
        for file in files:
            for name, record in file.records(opened):
                old = file.read(name)
                new = bytearray(old)
                record.overwrite(new)
                file.write(name, old, new)
        for file in files:
            os.fsync(file.fd)
        for file in files:
            if not file.has(opened):
                raise SafetensorError(f"{file.path}: the bytes on the disk are not those written")
    for file in files:
        file.set_mark(False)
    for file in files:
        os.fsync(file.fd)
    os.unlink(journal)
    flush(os.path.dirname(journal))


def _remove_sums(journal: str, files: Sequence[File]) -> None:
    """Removes the sums of the files, and of the index that the journal is named after."""
    for file in files:
        _core._remove_sums(file.path)
    folder, name = os.path.split(journal)
    sums = path_of(os.path.join(folder, name[1:].removesuffix(".journal")))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(sums)


def _names_in(journal: str) -> Dict[str, Any]:
    """Returns the identities of the files that a journal names."""
    fd = open_untrusted(journal)
    try:
        check_own(os.fstat(fd), journal)
    finally:
        os.close(fd)
    with safe_open(journal, framework="numpy", backend="pread") as opened:
        metadata = opened.metadata() or {}
    try:
        names = json.loads(metadata.get("files", ""))
    except (ValueError, RecursionError):
        names = None
    kind = (metadata.get("format"), metadata.get("version"))
    if kind != ("safetensors-journal", "1") or not isinstance(names, dict) or not names:
        refuse(journal, "it is not a journal")
    for name in names:
        if not name or os.path.basename(name) != name or "\0" in name or name in (".", ".."):
            refuse(journal, f"it names {name[:100]!r}, which is not in its folder")
    return names


def _pread(fd: int, nbytes: int, offset: int) -> bytes:
    """Reads exactly these bytes: one read returns at most 2 GiB."""
    parts = []
    while nbytes:
        part = os.pread(fd, nbytes, offset)
        if not part:
            raise OSError(errno.EIO, "the file has become shorter")
        parts.append(part)
        nbytes -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pwrite(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def refuse_in_place(path: str, reason: str) -> NoReturn:
    raise SafetensorError(f"{path} is not changed in place: {reason}")

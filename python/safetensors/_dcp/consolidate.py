"""Makes a model of the files of single ranks."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .. import _core
from .._core import safe_open
from .._errors import failure
from .._model_folder import BY_RULE, of_directory, warn_of
from .._paths import absolute, open_at_once
from .._progress import Report, shows_progress
from .._reading import Version, version_of
from .._saving.specs import Row
from .._typing import Path, ProgressOption
from . import boxes
from .model import FullSizeModel, Options
from .parts import SavedPart, SplitTensor
from .ranges import MAX_PER_CALL, write
from .rank_files import SHARDING_INFO, checked_offsets, offsets_of

_BLOCK_NBYTES = 1 << 20
_LEAST_RUN_NBYTES = 1 << 20
"""Shorter runs are assembled in memory: a call for each would take longer."""
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class _Source(NamedTuple):
    """Where a part's bytes are, in a file as it was when its header was read."""

    version: Version
    begin: int


@shows_progress("consolidating")
def consolidate(
    folder: Path,
    out: Path,
    *,
    max_shard_size: int | str = "5GB",
    name: str = "model",
    fqn_to_index_mapping: dict[str, int] | None = None,
    fsync: bool = False,
    progress: ProgressOption = None,
) -> list[str]:
    """Makes a model of the files that the ranks of a checkpoint wrote.

    Args:
        folder: has the files of `StorageWriter`, where ranks could not share files, or of
            `HuggingFaceStorageWriter(save_distributed=True)`. The files of its model are read, as
            `load_files` chooses them.
        out: another folder, made if it does not exist; its parent must exist.
        max_shard_size, name, fqn_to_index_mapping, fsync: see `StorageWriter`.
        progress: true for a bar; or called as `progress(done, total)` with bytes of tensors. If it
            raises, nothing is written.

    Returns:
        The paths of the files with tensors.

    Raises:
        SafetensorError: a file is damaged or was not written by one of these writers; or parts of
            a tensor are missing, overlap or differ in dtype. Nothing was written.
        OSError: an operating system call failed.
        ValueError: `out` is `folder`, or an option is not valid.
    """
    assert not isinstance(progress, bool)  # shows_progress() has resolved it
    folder = absolute(folder)
    if os.path.isdir(out) and os.path.samefile(folder, out):
        raise ValueError(f"the model cannot be written beside the files of the ranks: {folder}")
    tensors = _read_folder(folder)
    rows: list[Row] = []
    for tensor in tensors.values():
        tensor.check()
        rows.append((tensor.name, tensor.dtype, tensor.shape))
    model = FullSizeModel(out, rows, Options(max_shard_size, name, fsync, fqn_to_index_mapping))
    try:
        places = sorted(model.places.items(), key=lambda item: item[1])
        report = Report(sum(place.nbytes for _, place in places), progress)
        written = {}
        for index, of_file in itertools.groupby(places, key=lambda item: item[1].file):
            fd = model.open(index)
            try:
                for each, place in of_file:
                    written[each] = _write_tensor(fd, place.begin, tensors[each], report)
            finally:
                os.close(fd)
        report.finish()
        return model.commit(written)
    finally:
        model.abort()


def _read_folder(folder: str) -> dict[str, SplitTensor]:
    """Returns the tensors of all files."""
    model, _ = of_directory(folder, BY_RULE)
    warn_of(folder, model)
    tensors: dict[str, SplitTensor] = {}
    for file in model.files:
        path = os.path.join(folder, file)
        with open(path, "rb", opener=open_at_once) as stream:
            # First: the header is of this version or newer.
            version = version_of(os.fstat(stream.fileno()))
        with safe_open(path, "np", backend="pread") as handle:
            begin = _core._data_begin(handle)
            offsets = offsets_of(path, handle)
            if offsets is None:
                raise failure(
                    "invalid_argument", f"{path}: the metadata has no {SHARDING_INFO}", path=path
                )
            for name in handle.offset_keys():
                meta = handle.get_tensor_meta(name)
                tensor = tensors.get(name)
                if tensor is None:
                    tensor = tensors[name] = SplitTensor(name, meta.dtype, len(meta.shape))
                where = checked_offsets(path, name, offsets, len(meta.shape))
                tensor.add(path, _Source(version, begin + meta.data_offsets[0]), where, meta)
    return tensors


def _write_tensor(fd: int, begin: int, tensor: SplitTensor, report: Report) -> int:
    """Writes a tensor that begins at this offset of the file. Returns how many bytes it has."""
    written = 0
    runs = [boxes.runs(tensor.whole, part.box) for part in tensor.parts]
    if all(
        boxes.nbytes(part.box.sizes) == nbytes or nbytes >= _LEAST_RUN_NBYTES
        for part, (_, nbytes) in zip(tensor.parts, runs, strict=True)
    ):
        for part, (starts, nbytes) in zip(tensor.parts, runs, strict=True):
            with _opened(part) as source:
                for i, start in enumerate(starts):
                    _copy(part, source, part.source.begin + i * nbytes, fd, begin + start, nbytes)
                    report.add(nbytes)
                    written += nbytes
        return written
    for block in boxes.blocks(tensor.whole, _BLOCK_NBYTES):
        data = _assembled(tensor, block)
        start = next(boxes.runs(tensor.whole, block)[0])
        write(fd, begin + start, data)
        report.add(len(data))
        written += len(data)
    return written


def _assembled(tensor: SplitTensor, block: boxes.Box) -> memoryview:
    """Returns the bytes of a contiguous part of a tensor, read from the files of the ranks."""
    # Without dimensions of size 1: NumPy has a limit, and a block of 1 MiB no more than 20 others.
    dims = [dim for dim, size in enumerate(block.sizes) if size != 1]
    data = np.empty([block.sizes[dim] for dim in dims], np.uint8)
    for part in tensor.parts:
        shared = boxes.common(block, part.box)
        if shared is None:
            continue
        # A block divides one dimension, so the rows that it takes of a part are contiguous there.
        inner = boxes.relative(shared, part.box)
        starts, nbytes = boxes.runs(part.box.sizes, inner)
        values = np.empty(nbytes, np.uint8)
        with _opened(part) as source:
            _read(part, source, part.source.begin + next(starts), values.data)
        outer = boxes.relative(shared, block)
        begin, sizes = ([each[dim] for dim in dims] for each in outer)
        where = tuple(slice(o, o + s) for o, s in zip(begin, sizes, strict=True))
        data[where] = values.reshape(sizes)
    return data.reshape(-1).data


@contextlib.contextmanager
def _opened(part: SavedPart) -> Iterator[int]:
    fd = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if version_of(os.fstat(fd)) != part.source.version:
            raise failure(
                "file_changed", f"{part.path} has changed while it was read", path=part.path
            )
        yield fd
    finally:
        os.close(fd)


def _copy(part: SavedPart, source: int, begin: int, fd: int, to: int, nbytes: int) -> None:
    """Copies bytes from a part's file, in the kernel if possible."""
    while nbytes:
        done = 0
        if hasattr(os, "copy_file_range"):
            try:
                done = os.copy_file_range(source, fd, nbytes, begin, to)
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
        if done == 0:
            data = memoryview(bytearray(min(nbytes, MAX_PER_CALL)))
            _read(part, source, begin, data)
            write(fd, to, data)
            done = len(data)
        begin, to, nbytes = begin + done, to + done, nbytes - done


def _read(part: SavedPart, source: int, begin: int, into: memoryview) -> None:
    while into:
        done = os.preadv(source, [into], begin)
        if done == 0:
            raise failure(
                "file_changed", f"{part.path} has changed while it was read", path=part.path
            )
        into, begin = into[done:], begin + done

"""Makes a model of the files of single ranks."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from .. import _core
from .._core import SafetensorError, safe_open
from .._specs import Row
from .._typing import Path
from . import boxes
from .model import FullSizeModel, Options
from .ranges import MAX_PER_CALL, write
from .rank_files import OFFSETS, SHARDING_INFO

_BLOCK_NBYTES = 1 << 20
_LEAST_RUN_NBYTES = 1 << 20
"""Shorter runs are assembled in memory: a call for each would take longer."""
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class _Source(NamedTuple):
    """A file of a rank, as it was when its header was read."""

    path: str
    identity: Tuple[int, int, int]


class _Part(NamedTuple):
    """A part of a tensor, in the file of a rank."""

    source: _Source
    begin: int
    box: boxes.Box


class _Tensor:
    """A tensor of which the files of the ranks have parts."""

    def __init__(self, name: str, dtype: str, dims: int) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = [0] * dims
        self.whole: boxes.Sizes = ()
        self.parts: List[_Part] = []

    def add(self, source: _Source, begin: int, offsets: Sequence[int], meta: Any) -> None:
        """Adds a part."""
        if (meta.dtype, len(meta.shape)) != (self.dtype, len(self.shape)):
            raise SafetensorError(
                f"{source.path}: tensor `{self.name}` is {meta.dtype} {meta.shape}; in "
                f"{self.parts[0].source.path} it is {self.dtype} of {len(self.shape)} dimensions"
            )
        ends = zip(self.shape, offsets, meta.shape, strict=True)
        self.shape = [max(size, offset + count) for size, offset, count in ends]
        part = boxes.box(offsets, meta.shape, _bits(self.dtype))
        self.parts.append(_Part(source, begin, part))

    def check(self) -> None:
        """Raises unless the parts are the whole tensor, each element once."""
        self.whole = boxes.in_bytes(self.shape, _bits(self.dtype))
        found = boxes.overlapping([part.box for part in self.parts])
        if found is not None:
            first, second = (self.parts[i] for i in found)
            raise SafetensorError(
                f"{second.source.path}: the part of tensor `{self.name}` overlaps the one in "
                f"{first.source.path}"
            )
        nbytes = sum(boxes.nbytes(part.box.sizes) for part in self.parts)
        if nbytes != boxes.nbytes(self.whole):
            raise SafetensorError(
                f"{os.path.dirname(self.parts[0].source.path)}: the files have {nbytes:,} bytes of "
                f"tensor `{self.name}`, which is {self.dtype} {self.shape} and has "
                f"{boxes.nbytes(self.whole):,}"
            )


def consolidate(
    folder: Path,
    out: Path,
    *,
    max_shard_size: Union[int, str] = "5GB",
    name: str = "model",
    fqn_to_index_mapping: Optional[Dict[str, int]] = None,
    fsync: bool = False,
) -> List[str]:
    """Makes a model of the files that the ranks of a checkpoint wrote.

    Args:
        folder: has the files of `StorageWriter`, where ranks could not share files, or of
            `HuggingFaceStorageWriter(save_distributed=True)`. All its `*.safetensors` are read.
        out: another folder, made if it does not exist; its parent must exist.
        max_shard_size, name, fqn_to_index_mapping, fsync: see `StorageWriter`.

    Returns:
        The paths of the files with tensors.

    Raises:
        SafetensorError: a file is damaged or was not written by one of these writers; or parts of
            a tensor are missing, overlap or differ in dtype. Nothing was written.
        OSError: an operating system call failed.
        ValueError: `out` is `folder`, or an option is not valid.
    """
    folder = os.path.abspath(os.fsdecode(folder))
    if os.path.isdir(out) and os.path.samefile(folder, out):
        raise ValueError(f"the model cannot be written beside the files of the ranks: {folder}")
    tensors = _read_folder(folder)
    rows: List[Row] = []
    for tensor in tensors.values():
        tensor.check()
        rows.append((tensor.name, tensor.dtype, tensor.shape))
    model = FullSizeModel(out, rows, Options(max_shard_size, name, fsync, fqn_to_index_mapping))
    try:
        places = sorted(model.places.items(), key=lambda item: item[1])
        for index, of_file in itertools.groupby(places, key=lambda item: item[1].file):
            fd = os.open(model.path(model.files[index]), os.O_WRONLY | os.O_CLOEXEC)
            try:
                for each, place in of_file:
                    _write_tensor(fd, place.begin, tensors[each])
            finally:
                os.close(fd)
        return model.commit({each: place.nbytes for each, place in places})
    finally:
        model.abort()


def _read_folder(folder: str) -> Dict[str, _Tensor]:
    """Returns the tensors of all files."""
    names = sorted(file for file in os.listdir(folder) if file.endswith(".safetensors"))
    if not names:
        raise FileNotFoundError(errno.ENOENT, "No .safetensors files in the directory", folder)
    tensors: Dict[str, _Tensor] = {}
    for file in names:
        path = os.path.join(folder, file)
        with open(path, "rb") as stream:
            source = _Source(path, _identity(stream.fileno()))
            begin = 8 + int.from_bytes(stream.read(8), "little")
        with safe_open(path, "np", backend="pread") as handle:
            offsets = _offsets_of(path, handle)
            for name in handle.offset_keys():
                meta = handle.get_tensor_meta(name)
                tensor = tensors.get(name)
                if tensor is None:
                    tensor = tensors[name] = _Tensor(name, meta.dtype, len(meta.shape))
                where = _checked_offsets(path, name, offsets, len(meta.shape))
                tensor.add(source, begin + meta.data_offsets[0], where, meta)
    return tensors


def _offsets_of(path: str, handle: safe_open) -> Dict[str, Any]:
    """Returns the parts' offsets as the file gives them."""
    text = (handle.metadata() or {}).get(SHARDING_INFO)
    if text is None:
        raise SafetensorError(f"{path}: the metadata has no {SHARDING_INFO}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SafetensorError(f"{path}: {SHARDING_INFO} of the metadata is not a JSON object")
    return found


def _checked_offsets(path: str, name: str, info: Dict[str, Any], dims: int) -> List[int]:
    found = info.get(name)
    offsets = found.get(OFFSETS) if isinstance(found, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != dims
        or not all(type(each) is int and 0 <= each < 1 << 63 for each in offsets)
    ):
        raise SafetensorError(
            f"{path}: {SHARDING_INFO} has no valid offsets of tensor `{name}`: {str(found)[:100]}"
        )
    return offsets


def _bits(dtype: str) -> int:
    return int(_core._dtypes()[dtype]["bits"])


def _write_tensor(fd: int, begin: int, tensor: _Tensor) -> None:
    """Writes a tensor that begins at this offset of the file."""
    runs = [boxes.runs(tensor.whole, part.box) for part in tensor.parts]
    if all(
        boxes.nbytes(part.box.sizes) == nbytes or nbytes >= _LEAST_RUN_NBYTES
        for part, (_, nbytes) in zip(tensor.parts, runs, strict=True)
    ):
        for part, (starts, nbytes) in zip(tensor.parts, runs, strict=True):
            with _opened(part.source) as source:
                for i, start in enumerate(starts):
                    _copy(part, source, part.begin + i * nbytes, fd, begin + start, nbytes)
        return
    for block in boxes.blocks(tensor.whole, _BLOCK_NBYTES):
        data = _assembled(tensor, block)
        start = next(boxes.runs(tensor.whole, block)[0])
        write(fd, begin + start, data)


def _assembled(tensor: _Tensor, block: boxes.Box) -> memoryview:
    """Returns the bytes of a contiguous part of a tensor, read from the files of the ranks."""
    data = np.empty(block.sizes, np.uint8)
    for part in tensor.parts:
        shared = boxes.common(block, part.box)
        if shared is None:
            continue
        # A block divides one dimension, so the rows that it takes of a part are contiguous there.
        inner = boxes.relative(shared, part.box)
        starts, nbytes = boxes.runs(part.box.sizes, inner)
        values = np.empty(nbytes, np.uint8)
        with _opened(part.source) as source:
            _read(part, source, part.begin + next(starts), values.data)
        outer = boxes.relative(shared, block)
        where = tuple(slice(o, o + s) for o, s in zip(outer.offsets, outer.sizes, strict=True))
        data[where] = values.reshape(shared.sizes)
    return data.reshape(-1).data


def _identity(fd: int) -> Tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _opened(source: _Source) -> Iterator[int]:
    fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _identity(fd) != source.identity:
            raise SafetensorError(f"{source.path} has changed while it was read")
        yield fd
    finally:
        os.close(fd)


def _copy(part: _Part, source: int, begin: int, fd: int, to: int, nbytes: int) -> None:
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


def _read(part: _Part, source: int, begin: int, into: memoryview) -> None:
    while into:
        done = os.preadv(source, [into], begin)
        if done == 0:
            raise SafetensorError(f"{part.source.path} has changed while it was read")
        into, begin = into[done:], begin + done

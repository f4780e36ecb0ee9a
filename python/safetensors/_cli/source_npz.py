"""Reads NumPy's .npz archives, a chunk at a time."""

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import SafetensorError, TensorSpec
from .._saving.writer import SafeWriter
from . import text
from .errors import CliError
from .opening import Watch
from .reader import CHUNK_NBYTES
from .source import Copies, SourceTensor

if TYPE_CHECKING:
    import numpy as np

_SUFFIX = ".npy"
_MAX_HEADER_NBYTES = 16 << 10
"""NumPy reads headers of up to 10,000 bytes. One may claim 4 GB, which an archive stores as 4 MB of
compressed spaces."""
_MAX_UNPACKED_NBYTES = 64_000_000
"""The limit for arrays in Fortran order, which are held in memory, that take eight times as many
bytes as the archive stores."""
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class _Member(NamedTuple):
    """An array of an archive."""

    info: zipfile.ZipInfo
    begin: int
    """The offset of its data in the archive's member."""
    shape: tuple[int, ...]
    fortran: bool
    dtype: "np.dtype[Any]"
    nbytes: int


class NpzSource(Copies):
    """An archive of numpy.savez. Arrays of objects are refused, because they are pickles."""

    def __init__(self, path: str) -> None:
        try:
            import numpy  # noqa: F401
        except ImportError:
            raise CliError("convert needs NumPy for .npz files: pip install numpy") from None
        self._path = path
        self.paths = [path]
        self.metadata: dict[str, str] = {}
        self.notes: list[str] = []
        self._members: dict[str, _Member] = {}
        self.entries: list[SourceTensor] = []
        self._watch = Watch()
        try:
            self._zip = zipfile.ZipFile(self._watch.open(path))
            for info in self._zip.infolist():
                self._add(info)
        except BaseException as error:
            self.close()
            if isinstance(error, _BROKEN):
                raise self._error(str(error)) from None
            raise
        self.entries.sort(key=lambda entry: text.natural_key(entry.name))

    def refuse_changed(self) -> None:
        self._watch.refuse_changed()

    def write(self, writer: SafeWriter, names: Sequence[str]) -> None:
        for name in names:
            with writer.open(name) as stream:
                for chunk in self._chunks(name):
                    stream.write(chunk)

    def _chunks(self, name: str) -> Iterator[bytes]:
        """Yields the bytes of an array, with errors that name it."""
        try:
            yield from self._read_chunks(self._members[name])
        except _BROKEN as error:
            raise self._error(f"array `{text.clipped(name)}`: {error}") from None
        except MemoryError:
            raise self._error(f"array `{text.clipped(name)}`: not enough memory") from None

    def close(self) -> None:
        self._watch.close()

    def _error(self, message: str) -> CliError:
        return CliError(f"{self._path}: {text.clipped(message, 300)}")

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(_SUFFIX)
        if not info.filename.endswith(_SUFFIX):
            raise self._error(f"`{text.clipped(info.filename)}` is not an array")
        if name in self._members:
            raise self._error(f"array `{text.clipped(name)}` occurs twice")
        try:
            member = self._read_header(info, name)
        except _BROKEN as error:
            raise self._error(f"array `{text.clipped(name)}`: {error}") from None
        kind = member.dtype.name
        try:
            code = TensorSpec(dtype=kind, shape=(), data_ptr=0, data_len=0).dtype
        except SafetensorError:
            raise self._error(
                f"array `{text.clipped(name)}`: the format has no type {kind}"
            ) from None
        self._members[name] = member
        self.entries.append(SourceTensor(name, code, member.shape, member.nbytes))

    def _read_header(self, info: zipfile.ZipInfo, name: str) -> _Member:
        from numpy.lib import format as npy

        with self._zip.open(info) as member:
            stream = io.BytesIO(member.read(_MAX_HEADER_NBYTES))
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            begin = stream.tell()
        if dtype.hasobject:
            raise self._error(f"array `{text.clipped(name)}` holds Python objects: refused")
        nbytes = dtype.itemsize
        for dim in shape:
            nbytes *= dim
        # Checked before memory is allocated: the header may claim any size.
        if info.file_size != begin + nbytes:
            raise self._error(
                f"array `{text.clipped(name)}` has "
                f"{text.count(info.file_size - begin, 'byte')}, but its "
                f"shape and type require {nbytes:,}"
            )
        is_blown_up = nbytes > max(_MAX_UNPACKED_NBYTES, 8 * info.compress_size)
        if fortran and len(shape) > 1 and is_blown_up:
            raise self._error(
                f"array `{text.clipped(name)}` would take {text.size(nbytes)} of memory, but the "
                f"archive stores only {text.size(info.compress_size)}: save it in C order"
            )
        return _Member(info, begin, shape, fortran, dtype, nbytes)

    def _read_chunks(self, member: _Member) -> Iterator[bytes]:
        """Yields the bytes of the array in C order, little-endian."""
        import numpy as np

        with self._zip.open(member.info) as stream:
            _read_exactly(stream, member.begin)
            if member.fortran and len(member.shape) > 1:
                flat = np.frombuffer(_read_exactly(stream, member.nbytes), member.dtype)
                array = flat.reshape(member.shape[::-1]).T
                yield array.astype(member.dtype.newbyteorder("<"), order="C").tobytes()
                return
            # CHUNK_NBYTES is a multiple of the size of every type.
            for begin in range(0, member.nbytes, CHUNK_NBYTES):
                data = _read_exactly(stream, min(CHUNK_NBYTES, member.nbytes - begin))
                if member.dtype.newbyteorder("<") != member.dtype:
                    array = np.frombuffer(data, member.dtype)
                    data = array.astype(member.dtype.newbyteorder("<")).tobytes()
                yield data


def _read_exactly(stream: Any, nbytes: int) -> bytes:
    data = stream.read(nbytes)
    if len(data) != nbytes:
        raise EOFError("the archive is truncated")
    return bytes(data)

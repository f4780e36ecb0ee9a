"""One file, open for reading: its header by the core, its bytes by position."""

import os
from typing import Iterator, NamedTuple

from .._core import SafetensorError, _safe_open_handle, safe_open
from .errors import CliError
from .opening import CHUNK_NBYTES, open_input
from .text import shown_path

_LENGTH_NBYTES = 8


class Tensor(NamedTuple):
    """What a file's header says of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Where its bytes begin in the file."""
    nbytes: int


class File:
    """Raises what safe_open does. Errors of the system name the file. `-` is standard input."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self._file = open_input(self.path)
        try:
            # "np" asks for NumPy with the first array only, and there is none here.
            with _safe_open_handle(self._file, "np", backend="pread") as handle:
                self.nbytes = os.fstat(self._file.fileno()).st_size
                length = int.from_bytes(self.read(0, _LENGTH_NBYTES), "little")
                self.data_begin = _LENGTH_NBYTES + length
                self.metadata = handle.metadata()
                self.tensors = [self._tensor(handle, name) for name in handle.offset_keys()]
        except BaseException:
            self.close()
            raise

    def _tensor(self, handle: safe_open, name: str) -> Tensor:
        meta = handle.get_tensor_meta(name)
        begin, end = meta.data_offsets
        return Tensor(name, meta.dtype, tuple(meta.shape), self.data_begin + begin, end - begin)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def header(self) -> bytes:
        """The header's JSON, with its padding."""
        return self.read(_LENGTH_NBYTES, self.data_begin - _LENGTH_NBYTES)

    def read(self, begin: int, nbytes: int) -> bytes:
        """So many bytes from a position, all of them."""
        pieces = []
        while nbytes > 0:
            piece = self._read_some(begin, nbytes)
            if not piece:
                raise CliError(f"{shown_path(self.path)}: it became shorter while it was read")
            pieces.append(piece)
            begin, nbytes = begin + len(piece), nbytes - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        """A tensor's bytes, a few megabytes at a time."""
        end = tensor.begin + tensor.nbytes
        for begin in range(tensor.begin, end, CHUNK_NBYTES):
            yield self.read(begin, min(CHUNK_NBYTES, end - begin))

    def _read_some(self, begin: int, nbytes: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), nbytes, begin)
        self._file.seek(begin)
        return self._file.read(nbytes) or b""


def complaint(error: Exception, path: str) -> str:
    """An error of the core or the system without what the caller says anyway: where it arose and
    in which file."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, SafetensorError) and error.strerror:
        text = error.strerror
    text = text.removeprefix("Error while deserializing header: ")
    for end in (f" (in {path})", f": {path}"):
        text = text.removesuffix(end)
    return text


__all__ = ["CHUNK_NBYTES", "File", "SafetensorError", "Tensor", "complaint"]

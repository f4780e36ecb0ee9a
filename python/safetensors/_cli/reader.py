"""Reads one file: the core reads the header; bytes are read by position."""

import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .._core import SafetensorError, _data_begin, _safe_open_handle, safe_open
from .._dtypes import BITS
from .._extra import _plan_layout
from .._reading import LENGTH_NBYTES, read_all, read_some, version_of
from .errors import CliError
from .opening import CHUNK_NBYTES, open_input, refuse_changed

if TYPE_CHECKING:
    from .decode import Array


class Tensor(NamedTuple):
    """The header's entry of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """The offset of its bytes in the file."""
    nbytes: int


class File:
    """An open file; `-` is standard input. Raises the errors of safe_open, which name the file.

    `opened` is the file that open_input returned for the path; its caller closes it.
    """

    is_whole = True
    """Whether the file has the bytes that a handle shows: then blocks can be shared with it."""

    def __init__(self, path: "str | os.PathLike[str]", opened: io.FileIO | None = None) -> None:
        self.path = os.fspath(path)
        self._file = open_input(self.path) if opened is None else opened
        try:
            status = os.fstat(self._file.fileno())
            self._version = version_of(status)
            with self.handle() as handle:
                self.nbytes = status.st_size
                self._describe(handle)
        except BaseException:
            if opened is None:
                self.close()
            raise

    def _describe(self, handle: safe_open) -> None:
        """Sets what the header says."""
        self.data_begin = _data_begin(handle)
        self.metadata = handle.metadata()
        self.tensors = [self._tensor(handle, name) for name in handle.offset_keys()]

    def _tensor(self, handle: safe_open, name: str) -> Tensor:
        meta = handle.get_tensor_meta(name)
        begin, end = meta.data_offsets
        return Tensor(name, meta.dtype, tuple(meta.shape), self.data_begin + begin, end - begin)

    def handle(self) -> safe_open:
        """Returns the file as a handle of its own, to copy from. The caller closes it."""
        # "np" needs no NumPy here: safe_open imports it only for the first array.
        return _safe_open_handle(self._file, "np", backend="pread")

    def refuse_changed(self) -> None:
        """Raises SafetensorError if the file was written to since it was opened."""
        refuse_changed(self.path, self._version, os.fstat(self._file.fileno()))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_header(
        self, metadata: dict[str, str] | None, names: Mapping[str, str] | None = None
    ) -> bytes:
        """Returns a header of the same data with this metadata. It has the length of the old one,
        or, if it needs more, whole blocks more, so that file systems can share the data.

        With `names`, each tensor gets a new one.
        """
        new = names or {each.name: each.name for each in self.tensors}
        specs = [(new[each.name], each.dtype, each.shape) for each in self.tensors]
        try:
            prologue, _ = _plan_layout(specs, metadata, "given", self.data_begin)
        except UnicodeEncodeError:
            raise CliError("a name or metadata text is not valid UTF-8") from None
        return prologue[LENGTH_NBYTES:]

    def read(self, begin: int, nbytes: int) -> bytes:
        """Reads exactly `nbytes` bytes from a position."""
        try:
            return read_all(self._read_some, begin, nbytes)
        except EOFError:
            raise CliError(f"{self.path}: the file became shorter while it was read") from None

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        """Yields the bytes of a tensor, a few megabytes at a time."""
        end = tensor.begin + tensor.nbytes
        for begin in range(tensor.begin, end, CHUNK_NBYTES):
            yield self.read(begin, min(CHUNK_NBYTES, end - begin))

    def why_no_values(self, tensor: Tensor) -> str:
        """Returns why values() has none of a tensor; nothing if it has them."""
        from .decode import can_decode

        if can_decode(tensor.dtype):
            return ""
        return "the format does not say how elements of 6 bits are packed"

    def values(self, tensor: Tensor) -> "Iterator[tuple[Array, int]]":
        """Yields the values of a tensor, flat, some at a time, and the bytes that hold them. Needs
        NumPy."""
        from .decode import decoded

        for data in self.chunks(tensor):
            yield decoded(data, tensor.dtype), len(data)

    def values_between(self, tensor: Tensor, begin: int, end: int) -> "Array":
        """Returns some values of a tensor, flat. Needs NumPy."""
        from .decode import decoded

        bits = BITS[tensor.dtype]
        first, last = begin * bits // 8, -(-end * bits // 8)
        values = decoded(self._bytes_of(tensor, first, last), tensor.dtype)
        skipped = begin - first * 8 // bits  # of the first byte, which may have two values
        return values[skipped : skipped + end - begin]

    def _bytes_of(self, tensor: Tensor, begin: int, end: int) -> bytes:
        """Returns some bytes of a tensor, counted from its first one."""
        return self.read(tensor.begin + begin, end - begin)

    def about(self, tensor: Tensor) -> list[str]:
        """Returns lines about how the file stores a tensor, if that needs any."""
        return []

    def _read_some(self, begin: int, nbytes: int) -> bytes:
        return read_some(self._file, begin, nbytes)


def complaint(error: Exception, path: str) -> str:
    """Returns the message of an error without the parts that the caller adds, such as the path."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, SafetensorError) and error.strerror:
        text = error.strerror
    text = text.removeprefix("Error while deserializing header: ")
    for end in (f" (in {path})", f": {path}"):
        text = text.removesuffix(end)
    return text


__all__ = ["CHUNK_NBYTES", "File", "SafetensorError", "Tensor", "complaint"]

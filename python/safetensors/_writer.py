"""Writes a file tensor by tensor: safe_create, SafeWriter and specs_of."""

from __future__ import annotations

import io
import operator
import os
import sys
import threading
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
)

from . import _core
from ._core import SafetensorError, safe_open
from ._typing import Buffer, Path, Progress

if TYPE_CHECKING:
    from typing import BinaryIO

_DEFAULT_BUDGET = 256 << 20


class Spec(NamedTuple):
    """What a file will hold of a tensor."""

    dtype: str
    """The format's name, such as "BF16"."""
    shape: Tuple[int, ...]


Specs = Mapping[str, Tuple[Any, Sequence[int]]]
Target = Union[Path, int, "BinaryIO", Callable[[int, memoryview], object]]


def specs_of(source: Any) -> Dict[str, Spec]:
    """Returns the dtypes and shapes of tensors, for `safe_create`.

    Args:
        source: a dict of tensors (of torch, also on the meta device, or of NumPy) or of
            `(dtype, shape)`; a module of torch; an open file (`safe_open`); or the path of a file,
            an index or a directory. A dtype is a name of the format ("BF16"), of torch
            ("bfloat16"), or a dtype object.

    Raises:
        SafetensorError: the format has no such dtype.
        RuntimeError: tensors of a dict share memory, as in `save_file`.
    """
    if isinstance(source, safe_open):
        return _specs_of_file(source)
    if isinstance(source, (str, bytes, os.PathLike)):
        return _specs_of_path(source)
    if not isinstance(source, Mapping):
        source = source.state_dict()
    _refuse_shared(source)
    return {name: _spec_of(name, value) for name, value in source.items()}


def safe_create(
    target: Target,
    specs: Any = None,
    *,
    metadata: Optional[Dict[str, str]] = None,
    layout: str = "canonical",
    budget_bytes: int = _DEFAULT_BUDGET,
    fsync: bool = False,
    progress: Optional[Progress] = None,
    _rights_of: Optional[Path] = None,
) -> SafeWriter:
    """Creates a file whose tensors are written one by one, so that they are never all in memory.

        with safe_create("out.safetensors", specs_of(model)) as w:
            for name, tensor in convert():
                w.write(name, tensor)

    A file at a path appears when the writer is closed, complete, and replaces an existing file.
    Leaving the `with` block by an exception discards what was written.

    Args:
        target: a path; a descriptor; a binary file object, which is written from its position on
            and stays open; or a function `f(offset, view)`, which writes the bytes of a memoryview
            at an offset and keeps no reference to it. Only a path is written atomically. Other
            targets that can seek are cut back if the file is not completed.
        specs: what the file will hold: all that `specs_of` takes. The file has the bytes that
            `save_file` writes. None, for paths only: tensors are stored in the order in which they
            are written, and the header gets the 64 KiB before them, or more if it needs more.
        metadata: strings to store in the file's header.
        layout: "canonical", or "blocks": tensors of whole 4096-byte blocks begin with a block, so
            that copies of them share disk space on file systems such as btrfs and XFS.
        budget_bytes: the limit of bytes that are kept in memory because a target that cannot seek,
            such as a pipe, needs others first.
        fsync: if true, closing returns only after the file and its name are on the disk.
        progress: called as `progress(done, total)` with byte counts. If it raises, the writer has
            failed.

    Raises:
        SafetensorError: the specs cannot be written. If an operating system call fails, the error
            is an OSError too.
    """
    return SafeWriter(target, specs, metadata, layout, budget_bytes, fsync, progress, _rights_of)


class SafeWriter:
    """Writes a file tensor by tensor; made by `safe_create`.

    The methods may be called from several threads at once.
    """

    def __init__(
        self,
        target: Any,
        specs: Any,
        metadata: Optional[Dict[str, str]],
        layout: str,
        budget_bytes: int,
        fsync: bool,
        progress: Optional[Progress],
        rights_of: Optional[Path],
    ) -> None:
        self._writer: Any = None
        self._stream: Optional[_Stream] = None
        self._lock = threading.Lock()
        self._specs: Optional[Dict[str, Spec]] = None if specs is None else specs_of(specs)
        self._added: Dict[str, Spec] = {}
        is_path = isinstance(target, (str, bytes, os.PathLike))
        if specs is None and not is_path:
            raise ValueError(
                "without specs, the header is written after the tensors: that needs a path"
            )
        seeks = True
        if isinstance(target, int):
            target = operator.index(target)
        elif not is_path and not callable(target):
            self._stream = _stream_of(target)
            target, seeks = self._stream.target, self._stream.seeks
        entries = None
        if self._specs is not None:
            entries = [(name, spec.dtype, spec.shape) for name, spec in self._specs.items()]
        self._index = {name: i for i, name in enumerate(self._specs or ())}
        self._writer = _core._FileWriter(
            target,
            seeks,
            entries,
            metadata,
            layout,
            bool(fsync),
            budget_bytes,
            progress,
            rights_of,
        )

    @property
    def specs(self) -> Dict[str, Spec]:
        """The dtype and shape of each tensor; without specs, of those written so far."""
        return dict(self._added if self._specs is None else self._specs)

    @property
    def missing(self) -> List[str]:
        """The names of the tensors that are not completely written, in file order."""
        names = list(self._index)
        return [names[i] for i in self._open().missing()]

    @property
    def nbytes_written(self) -> int:
        """The bytes of tensors that were written."""
        return int(self._writer.nbytes_written) if self._writer is not None else 0

    @property
    def closed(self) -> bool:
        return self._writer is None

    def write(self, name: str, tensor: Any) -> None:
        """Writes a tensor. It may be changed or deleted when the call returns.

        Args:
            name: its name in the specs.
            tensor: a tensor of torch, on any device; a NumPy array; an object with `__dlpack__`; or
                an object with a buffer, such as `bytes`, of the tensor's size. A tensor that is not
                contiguous is copied first.

        Raises:
            SafetensorError: the specs have no such name, or another dtype or shape; or the tensor
                was written before. The writer goes on.
        """
        writer = self._open()
        index = self._index_of(name) if self._specs is not None else self._add(writer, name, tensor)
        if writer.write(index, tensor):
            return
        prepared = _prepared(name, tensor)
        if isinstance(prepared, _Prepared):
            writer.write(index, prepared.spec)
        else:
            writer.write_bytes(index, None, prepared)

    __setitem__ = write

    def write_slice(self, name: str, index: Any, part: Any) -> None:
        """Writes a part of a tensor: `w.write_slice("a", (slice(0, 10), ...), rows)`.

        Parts that overlap are not noticed, unless together they have more elements than the tensor.

        Args:
            name: the tensor's name in the specs.
            index: integers, slices and "..." as in `tensor[index]`.
            part: a tensor as for `write`, of the shape that the index selects.
        """
        writer = self._open()
        if self._specs is None:
            raise SafetensorError(
                f"Error while serializing: without specs, the size of tensor `{name}` is not "
                "known: write it as a whole"
            )
        spec = _prepared(name, part)
        if not isinstance(spec, _Prepared):
            raise TypeError(f"a part is a tensor or an array, not {type(part).__name__}")
        writer.write_slice(self._index_of(name), index, spec.dtype, spec.shape, spec.array)

    def open(self, name: str) -> BinaryIO:
        """Returns a file object that takes the tensor's bytes in order, little-endian."""
        writer = self._open()
        if self._specs is None:
            raise SafetensorError(
                f"Error while serializing: without specs, the size of tensor `{name}` is not "
                "known: write it as a whole"
            )
        return io.BufferedWriter(_TensorBytes(writer, self._index_of(name)), 1 << 20)

    def copy(
        self, source: safe_open, name: Optional[str] = None, *, to: Optional[str] = None
    ) -> None:
        """Copies tensors of an open file, without bringing them into memory if possible.

        On file systems such as btrfs and XFS, whole blocks are shared with the source if the
        tensors begin at the same offset in a block: see `layout`.

        Args:
            source: an open file.
            name: a tensor of the source; None copies all that the specs name and that are not
                written yet.
            to: the tensor's name in the new file; None keeps the name.
        """
        writer = self._open()
        if name is not None:
            pairs = [(to if to is not None else name, name)]
        elif to is not None:
            raise TypeError("`to` needs the name of a tensor")
        elif self._specs is None:
            pairs = [(each, each) for each in source.offset_keys()]
        else:
            left = set(self.missing)
            pairs = [(each, each) for each in source.offset_keys() if each in left]
        if self._specs is None:
            indices = [self._add_spec(writer, new, _spec_in(source, old)) for new, old in pairs]
        else:
            indices = [self._index_of(new) for new, _ in pairs]
        writer.copy(source, [(i, old) for i, (_, old) in zip(indices, pairs, strict=True)])

    def close(self) -> None:
        """Completes the file. Does nothing if the writer is closed.

        Raises:
            SafetensorError: tensors are missing. The writer stays open, and the target as it was.
        """
        if self._writer is None:
            return
        try:
            self._writer.commit()
        except SafetensorError as error:
            if error.code != "missing_tensors":
                self.abort()
            raise
        except BaseException:
            self.abort()
            raise
        self._nbytes = self._writer.nbytes_written
        self._writer = None
        if self._stream is not None:
            self._stream.finish()

    def abort(self) -> None:
        """Discards what was written. Does nothing if the writer is closed."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.abort()
        if self._stream is not None:
            self._stream.undo()

    def __enter__(self) -> SafeWriter:
        return self

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc_value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            if exc_type is None:
                self.close()
        finally:
            self.abort()

    def __del__(self) -> None:
        self.abort()

    def _open(self) -> Any:
        writer = self._writer
        if writer is None:
            raise SafetensorError("Error while serializing: the writer is closed")
        return writer

    def _index_of(self, name: str) -> int:
        try:
            return self._index[name]
        except KeyError:
            raise _core._error_class(KeyError)(
                f"Error while serializing: the specs have no tensor `{name}`"
            ) from None

    def _add(self, writer: Any, name: str, tensor: Any) -> int:
        if not hasattr(tensor, "shape"):
            raise SafetensorError(
                f"Error while serializing: without specs, tensor `{name}` needs a dtype and a "
                f"shape, which {type(tensor).__name__} does not have"
            )
        return self._add_spec(writer, name, _spec_of(name, tensor))

    def _add_spec(self, writer: Any, name: str, spec: Spec) -> int:
        with self._lock:
            index: int = writer.add(name, spec.dtype, spec.shape)
            self._index[name] = index
            self._added[name] = spec
        return index


class _TensorBytes(io.RawIOBase):
    """The bytes of one tensor, as a stream."""

    def __init__(self, writer: Any, index: int) -> None:
        self._writer = writer
        self._index = index
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        nbytes = memoryview(data).nbytes
        self._writer.write_bytes(self._index, self._position, data)
        self._position += nbytes
        return nbytes


class _Prepared(NamedTuple):
    """A tensor in the layout of files."""

    dtype: str
    shape: Tuple[int, ...]
    array: Any
    """Its bytes, an object with a buffer."""
    spec: Any
    """A TensorSpec of the array."""


def _prepared(name: str, tensor: Any) -> Any:
    """Returns a _Prepared, or the tensor itself if it is an object with a buffer."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _prepared_torch(name, tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        return _prepared_numpy(tensor)
    if hasattr(tensor, "__dlpack__"):
        if torch is not None:
            return _prepared_torch(name, torch.from_dlpack(tensor))
        import numpy as np

        return _prepared_numpy(np.from_dlpack(tensor))
    return tensor


def _prepared_torch(name: str, tensor: Any) -> _Prepared:
    from . import torch
    from ._torch.checks import _evaluate_tensors_for_save

    _evaluate_tensors_for_save({name: tensor})
    array, dense = torch._to_ndarray(tensor)
    spec = _core.TensorSpec(
        dtype=str(dense.dtype).rpartition(".")[2],
        shape=dense.shape,
        data_ptr=array.ctypes.data,
        data_len=array.nbytes,
    )
    return _Prepared(spec.dtype, tuple(spec.shape), array, spec)


def _prepared_numpy(array: Any) -> _Prepared:
    from . import numpy

    kept: List[Any] = []
    spec = numpy._flatten({"": array}, kept)[""]
    stored = kept[0].reshape(-1).view("u1")
    return _Prepared(spec.dtype, tuple(spec.shape), stored, spec)


def _dtype_code(name: str, dtype: Any) -> str:
    """Returns the format's name of a dtype."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    code = _codes().get(text.rpartition(".")[2])
    if code is None:
        raise _core._error_class(KeyError)(
            f"Error while serializing: tensor `{name}`: the format has no dtype {text}"
        )
    return code


def _codes() -> Dict[str, str]:
    """Maps the names of dtypes in the format, torch and NumPy to those in the format."""
    if not _CODES:
        for code, row in _core._dtypes().items():
            _CODES[code] = code
            for other in (row["torch"], row["ml_dtypes"]):
                if other:
                    _CODES[other] = code
        _CODES["uint8"], _CODES["bool"] = "U8", "BOOL"
    return _CODES


_CODES: Dict[str, str] = {}


def _spec_of(name: str, value: Any) -> Spec:
    """Returns the spec of a tensor, or of a pair (dtype, shape)."""
    if isinstance(value, tuple):
        dtype, shape = value
        return Spec(_dtype_code(name, dtype), tuple(shape))
    code = _dtype_code(name, value.dtype)
    shape = tuple(value.shape)
    torch = sys.modules.get("torch")
    if code == "F4" and shape and torch is not None and isinstance(value, torch.Tensor):
        shape = (*shape[:-1], shape[-1] * 2)  # torch's element is a byte, which holds two
    return Spec(code, shape)


def _spec_in(file: safe_open, name: str) -> Spec:
    meta = file.get_tensor_meta(name)
    return Spec(meta.dtype, tuple(meta.shape))


def _specs_of_file(file: safe_open) -> Dict[str, Spec]:
    return {name: _spec_in(file, name) for name in file.offset_keys()}


def _specs_of_path(path: Path) -> Dict[str, Spec]:
    import contextlib

    from ._shards import find_shards, open_tensors

    with contextlib.ExitStack() as stack:
        handles, _ = open_tensors(find_shards(path), None, "pread", stack)
        return {name: _spec_in(handle, name) for name, handle in handles.items()}


def _refuse_shared(source: Mapping[str, Any]) -> None:
    """Raises RuntimeError if tensors of torch share memory."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    real = {
        name: value
        for name, value in source.items()
        if isinstance(value, torch.Tensor) and value.device.type != "meta"
    }
    if real:
        from ._torch.checks import _refuse_shared_tensors

        _refuse_shared_tensors(real)


class _Stream:
    """A binary file object as a target of `safe_create`."""

    def __init__(self, file: Any, begin: Optional[int]) -> None:
        self._file = file
        self._begin = begin
        self._position = begin or 0
        self._end = begin or 0
        self.seeks = begin is not None
        self.target: Any = self._write

    def _write(self, offset: int, view: memoryview) -> None:
        position = (self._begin or 0) + offset
        if position != self._position:
            self._file.seek(position)
        while view:
            count = self._file.write(view)
            if count is None:  # some objects do not say: they have written all
                count = len(view)
            view = view[count:]
            position += count
        self._position = position
        self._end = max(self._end, position)

    def finish(self) -> None:
        """Leaves the object at the end of what was written."""
        if self._position != self._end:
            self._file.seek(self._end)

    def undo(self) -> None:
        """Cuts the object back to where it began."""
        if self._begin is not None:
            self._file.seek(self._begin)
            self._file.truncate()


class _Descriptor(_Stream):
    """An unbuffered file, which the compiled module writes by its descriptor."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, None)
        self.seeks = True
        self.target = file.fileno()


def _stream_of(file: Any) -> _Stream:
    if not hasattr(file, "write"):
        raise TypeError(
            "target is a path, a descriptor, a binary file object or a function, not "
            f"{type(file).__name__}"
        )
    if isinstance(file, io.TextIOBase):
        raise TypeError("target is open as text: open it in binary mode")
    if isinstance(file, io.FileIO):
        return _Descriptor(file)
    return _Stream(file, _position_of(file))


def _position_of(file: Any) -> Optional[int]:
    """Returns the position of an object that can be written anywhere; None for others."""
    # A GzipFile says that it seeks, but does not seek back.
    if type(file).__module__ == "gzip" or "a" in str(getattr(file, "mode", "")):
        return None
    try:
        if not file.seekable():
            return None
        position: int = file.tell()
    except (AttributeError, OSError):
        return None
    return position

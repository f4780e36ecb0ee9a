"""Writes a file tensor by tensor: safe_create and SafeWriter."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _extra
from .._core import safe_open
from .._errors import failure
from .._extra import _OwnTarget as OwnTarget
from .._pickling import NotPickled
from .._progress import reported
from .._text import count
from .._typing import Path, ProgressOption, SumsOption
from .arguments import SaveArguments
from .prepare import Prepared, prepared
from .specs import Spec, spec_in, spec_of, specs_of
from .stream_target import StreamTarget, stream_target
from .tensor_file import TensorFile
from .writer_state import (
    OpenWriter,
    added_before_error,
    closed_error,
    refuse_own_call,
    unknown_error,
)

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["SafeWriter", "open_writer", "safe_create"]

_BUDGET_NBYTES = 256 << 20

Target: TypeAlias = "Path | int | BinaryIO | Callable[[int, memoryview], object] | OwnTarget"
_PATHS = (str, bytes, os.PathLike, OwnTarget)


def safe_create(
    target: Target,
    specs: Any = None,
    *,
    metadata: dict[str, str] | None = None,
    layout: str = "canonical",
    max_shard_size: int | str | None = None,
    name: str = "model",
    budget_bytes: int = _BUDGET_NBYTES,
    fsync: bool = False,
    progress: ProgressOption = None,
    sums: SumsOption = None,
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
            at an offset, for several threads at once if they write. When it returns, nothing may
            refer to the view or its memory: no slice, array or thread. The same is true of
            `write(view)` of a file object. Only a path is written atomically. If the file is not
            completed, a file object that can seek, or a descriptor that was at its end, gets its
            old length back; what was overwritten is lost.
        specs: what the file will hold: all that `specs_of` takes. The file has the bytes that
            `save_file` writes. None, for paths only: tensors are stored in the order in which they
            are written, and the header gets the 64 KiB before them, or more if it needs more.
        metadata: strings to store in the file's header.
        layout: "canonical", or "blocks": tensors of whole 4096-byte blocks begin with a block, so
            that copies of them share disk space on file systems such as btrfs and XFS.
        max_shard_size: makes a model of `target`, a folder: files of at most this size ("5GB", or
            bytes) and their index, with the names of `save_files`. They replace an old model as a
            whole when the writer is closed. Without specs, a file is completed when the next tensor
            does not fit.
        name: with `max_shard_size`, the first part of the files' names.
        budget_bytes: the limit of bytes that are kept in memory because a target that cannot seek,
            such as a pipe, needs others first.
        fsync: if true, closing returns only after the file and its name are on the disk.
        progress: true for a bar; or called as `progress(done, total)` with bytes of the file, or
            of the tensors with `max_shard_size`. Without specs, the total grows with each tensor.
            If it raises, the writer has failed.
        sums: whether to write the digests of the tensors beside a file at a path, as `save_file`.
            Tensors that are copied, or not written in the order of their bytes, are read for it.

    Raises:
        SafetensorError: the specs cannot be written. If an operating system call fails, the error
            is an OSError too. Writing raises it also if a target keeps memory that it was given.
    """
    entries = None if specs is None else specs_of(specs)
    with contextlib.ExitStack() as shown:
        report = shown.enter_context(reported(progress, "writing", entries is not None))
        options = SaveArguments(metadata, fsync, report, sums, layout, budget_bytes)
        if max_shard_size is None:
            writer = open_writer(target, entries, options)
        else:
            from .shard_writer import ShardWriter

            if not isinstance(target, (str, bytes, os.PathLike)):
                raise TypeError("max_shard_size needs the path of a folder as target")
            writer = SafeWriter(
                ShardWriter(target, entries, max_shard_size, name, options), entries
            )
        assert writer._inner is not None
        writer._inner.bar = shown.pop_all()
    return writer


def open_writer(
    target: Target, specs: dict[str, Spec] | None, options: SaveArguments
) -> SafeWriter:
    """Does what safe_create() does without `max_shard_size`."""
    seeks, stream = True, None
    to: Any = target
    if options.sums and not isinstance(target, _PATHS):
        raise ValueError("sums need a path as target")
    how = options.of_file(target)
    if not isinstance(target, (int, *_PATHS)):
        if specs is None:
            raise ValueError(
                "without specs, the header is written after the tensors: that needs a path"
            )
        if not callable(target):
            stream = stream_target(target)
            to, seeks = stream.target, stream.seeks
    return SafeWriter(_extra._FileWriter(to, seeks, specs, how), specs, stream)


class SafeWriter(NotPickled):
    """Writes a file tensor by tensor; made by `safe_create`.

    Thread safety: any threads may call any methods at once. One call of `close`, `abort` or the end
    of the `with` block completes or discards the file; others wait for it, and then do nothing or
    raise SafetensorError. Calls that write meanwhile raise SafetensorError. A callback of the
    writer (`progress`, a target, a signal handler) must not call methods of it, and gets
    SafetensorError: it stops the writer by raising an exception.

    In a forked child, closing raises SafetensorError, and nothing is discarded.
    """

    _why_not_pickled = "it writes a file in this process. Send it the tensors, such as by a queue"
    _inner: OpenWriter | None = None  # here, as __del__ also runs if __init__ failed

    def __init__(
        self,
        writer: Any,
        specs: dict[str, Spec] | None,
        stream: StreamTarget | None = None,
    ) -> None:
        """Takes a _FileWriter or a ShardWriter; without specs, one that tensors are added to."""
        self._inner = OpenWriter(writer, stream)
        self._lock = threading.Lock()
        self._has_plan = specs is not None
        self._specs: dict[str, Spec] = specs or {}
        self._index = dict(zip(self._specs, range(len(self._specs)), strict=True))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        tensors = count(len(self._specs), "tensor")
        return f"<SafeWriter of {tensors}, {self.nbytes_written:,} bytes written, {state}>"

    @property
    def specs(self) -> dict[str, Spec]:
        """The dtype and shape of each tensor; without specs, of those written so far."""
        return dict(self._specs)

    @property
    def missing(self) -> list[str]:
        """The names of the tensors that are not completely written, in file order.

        Raises:
            SafetensorError: the writer is closed, or being closed.
        """
        writer = self._open()
        refuse_own_call(writer)
        with self._lock:  # in which tensors are added
            names = list(self._index)
            return [names[i] for i in writer.missing()]

    @property
    def nbytes_written(self) -> int:
        """The bytes of tensors that were written. A callback may read it, too."""
        return self._inner.nbytes_written if self._inner is not None else 0

    @property
    def closed(self) -> bool:
        """Whether the file was completed or discarded."""
        return self._inner is None or self._inner.writer is None

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
        inner = self._inner
        writer = (inner and inner.writer) or self._open()  # quickly, as there may be many tensors
        data = tensor
        if self._has_plan:
            index = self._index_of(name)
        else:
            spec = self._spec_of_new(name, tensor)
            # The compiled module imports torch to find out whether it is one of its plain tensors.
            if "torch" not in sys.modules or not _extra._specs_of_torch({name: tensor}, Spec):
                data = prepared(name, tensor)  # first: what is refused leaves no gap in the file
            (index,) = self._add(writer, {name: spec})
        if not isinstance(data, Prepared):
            if writer.write(index, data):
                return
            data = prepared(name, data)
        if isinstance(data, Prepared):
            writer.write(index, data.spec)
        else:
            writer.write_bytes(index, None, data)

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
        self._refuse_part(name)
        data = prepared(name, part)
        if not isinstance(data, Prepared):
            raise TypeError(f"a part is a tensor or an array, not {type(part).__name__}")
        writer.write_slice(self._index_of(name), index, data.dtype, data.shape, data.array)

    def open(self, name: str) -> BinaryIO:
        """Returns a file object that takes the tensor's bytes in order, little-endian."""
        writer = self._open()
        self._refuse_part(name)
        index = self._index_of(name)
        return TensorFile(lambda begin, data: writer.write_bytes(index, begin, data))

    def copy(
        self,
        source: safe_open,
        name: str | None = None,
        *,
        to: str | None = None,
        cast: bool = False,
    ) -> None:
        """Copies tensors of an open file, without bringing them into memory if possible.

        On file systems such as btrfs and XFS, whole blocks are shared with the source if the
        tensors begin at the same offset in a block: see `layout`.

        Args:
            source: an open file.
            name: a tensor of the source; None copies all that the specs name and that are not
                written yet.
            to: the tensor's name in the new file; None keeps the name.
            cast: if true, tensors of another dtype than in the specs are converted, with the
                rounding of torch: F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 to each other. Memory
                stays within 16 MiB.

        Raises:
            SafetensorError: the specs have no such name, another shape or dtype, or a dtype that
                `cast` does not convert; the tensor was written before; or the source has changed.
        """
        if name is not None:
            pairs = [(to if to is not None else name, name)]
        elif to is not None:
            raise TypeError("`to` needs the name of a tensor")
        elif not self._has_plan:
            pairs = [(each, each) for each in source.offset_keys()]
        else:
            left = set(self.missing)
            pairs = [(each, each) for each in source.offset_keys() if each in left]
        self._copy(source, pairs, cast)

    def close(self) -> None:
        """Completes the file. Does nothing if that was done.

        Raises:
            SafetensorError: tensors are missing, or another thread is still writing one: the writer
                stays open, and the target as it was. Or the writer was aborted, which another
                thread may have done.
            OSError: an operating system call failed, as a SafetensorError, too: what was written is
                discarded. If files of a model had taken their places by then, the error says that
                `safetensors recover` completes the model, and the writer is closed.
        """
        if self._inner is not None:
            self._inner.close()

    def abort(self) -> None:
        """Discards what was written. Does nothing if the writer is closed.

        If another thread closes the writer, waits until it has done so. Does not wait for calls
        that write, which may hang: when they end, they raise SafetensorError. Only a file of a
        model that is being completed is waited for.
        """
        if self._inner is not None:
            self._inner.abort()

    def __enter__(self) -> SafeWriter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            # A block that aborts its writer, or handles an error of closing it, may end.
            if exc_type is None and self._inner is not None and not self._inner.was_aborted_here:
                self.close()
        finally:
            with contextlib.suppress(OSError):  # the error in flight says more
                self.abort()

    def __del__(self) -> None:
        # What abort() calls may be gone if the interpreter is ending.
        if self._inner is not None and self._inner.writer is not None:
            self.abort()

    def _copy(
        self, source: safe_open, pairs: Sequence[tuple[str, str]], cast: bool = False
    ) -> None:
        """Copies tensors, given as pairs of the name in the new file and that in the source."""
        writer = self._open()
        if not self._has_plan:
            indices = self._add(writer, {new: spec_in(source, old) for new, old in pairs})
        else:
            indices = [self._index_of(new) for new, _ in pairs]
        names = [old for _, old in pairs]
        writer.copy(source, list(zip(indices, names, strict=True)), bool(cast))

    def _open(self) -> Any:
        inner = self._inner
        writer = inner.writer if inner is not None else None
        if writer is None:
            raise closed_error()
        return writer

    def _refuse_part(self, name: str) -> None:
        """Raises if the size of a tensor is known only when it is written as a whole."""
        if not self._has_plan:
            raise failure(
                "invalid_argument",
                f"Error while serializing: without specs, the size of tensor `{name}` is not "
                "known: write it as a whole",
                subject=name,
            )

    def _index_of(self, name: str) -> int:
        index = self._index.get(name)
        if index is None:
            raise unknown_error(name, self._index)
        return index

    def _spec_of_new(self, name: str, tensor: Any) -> Spec:
        if name in self._index:
            raise added_before_error(name)
        if not hasattr(tensor, "dtype"):
            raise failure(
                "invalid_argument",
                f"Error while serializing: without specs, tensor `{name}` needs a dtype and a "
                f"shape, which {type(tensor).__name__} does not have",
                subject=name,
            )
        return spec_of(name, tensor)

    def _add(self, writer: Any, specs: dict[str, Spec]) -> list[int]:
        """Adds tensors, or none if one of them was added before, and returns their indices."""
        refuse_own_call(writer)
        with self._lock:
            for name in specs:
                if name in self._index:
                    raise added_before_error(name)
            for name, spec in specs.items():
                self._index[name] = writer.add(name, spec.dtype, spec.shape)
                self._specs[name] = spec
            return [self._index[name] for name in specs]

"""Writes a model tensor by tensor: its files, and their index."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _extra
from .._core import SafetensorError, safe_open
from .._errors import failure
from .._typing import Buffer, Path, Progress
from .arguments import SaveArguments
from .model_files import ModelFiles
from .specs import Row, Spec, nbytes_of, rows_of
from .split import MAX_SHARDS, Split, parse_size, split
from .writer_state import closed_error, own_call_error, still_writing_error

if TYPE_CHECKING:
    from .._checking.digests import FileDigests


class _Shard:
    """A file of the model. Its writer is open from its first tensor until it is complete.

    It is completed by the call that ends last of those that write its bytes.
    """

    def __init__(self, number: int, rows: list[Row], nbytes: int) -> None:
        self.number = number
        self.rows = rows
        self.nbytes = nbytes
        self.writer: Any = None
        self.users = 0
        """The calls that are using the writer."""
        self.is_full = False
        """Whether no tensor will be added."""
        self.is_complete = False
        self.digests: list[FileDigests] | None = None
        """None without sums."""

    @property
    def nbytes_written(self) -> int:
        writer = self.writer  # another thread may complete the file
        if writer is not None:
            return int(writer.nbytes_written)
        return self.nbytes if self.is_complete else 0


class ShardWriter:
    """Has the methods of a _FileWriter, for a folder.

    Tensors are divided among files as `save_files` does it. Without rows, they are added one by
    one: a file is completed when the next tensor does not fit.

    Thread safety: as SharedWriter of the compiled module, but one thread at a time calls `commit`
    or `abort`, and `abort` waits for a file that is being completed. `progress` is called without
    `_lock`, because the thread that calls it may hold the lock of a _FileWriter.
    """

    def __init__(
        self,
        folder: Path,
        specs: dict[str, Spec] | None,
        max_shard_size: int | str,
        name: str,
        options: SaveArguments,
    ) -> None:
        _extra._plan_layout([], options.metadata, options.layout)  # checks them
        options.of_shards()  # checks the sums
        self._options = options
        self._lock = threading.RLock()
        self._callers: set[int] = set()
        """The threads that are within a call."""
        self._is_committing = False
        self._is_closed = False
        self._progress_lock = threading.Lock()
        self._most = parse_size(max_shard_size)
        self._places: list[tuple[_Shard, int]] = []  # by index of the tensor
        self._sizes: list[int] = []
        self._names: dict[str, None] = {}  # in the order of the indices
        self._shards: list[_Shard] = []
        self._done = 0
        self._total = 0
        self._has_plan = specs is not None
        if specs is not None:
            self._divide(rows_of(specs))
        self._files = ModelFiles(folder, name, options.fsync)

    def _divide(self, rows: list[Row]) -> None:
        sizes = nbytes_of(rows)
        self._sizes = list(sizes.values())
        self._total = sum(self._sizes)
        by_name = {row[0]: row for row in rows}
        found: dict[str, tuple[_Shard, int]] = {}
        for number, names in enumerate(split(sizes, self._most).shards, 1):
            rows_of = [by_name[name] for name in names]
            shard = _Shard(number, rows_of, sum(sizes[name] for name in names))
            shard.is_full = True
            self._shards.append(shard)
            found.update((name, (shard, i)) for i, name in enumerate(names))
        self._places = [found[row[0]] for row in rows]
        self._names = {row[0]: None for row in rows}

    def add(self, name: str, dtype: str, shape: Sequence[int]) -> int:
        """Adds a tensor, whose name is new, to the last file or to a new one. Returns its index."""
        nbytes = nbytes_of([(name, dtype, shape)])[name]
        with self._within():
            shard = self._shards[-1] if self._shards else None
            if shard is None or (shard.rows and shard.nbytes + nbytes > self._most):
                if len(self._shards) == MAX_SHARDS:
                    raise ValueError(
                        f"a model may have {MAX_SHARDS:,} shards, and tensor `{name}` "
                        "would begin another one: max_shard_size is too small"
                    )
                if shard is not None:
                    shard.is_full = True
                    self._finish(shard)
                shard = _Shard(len(self._shards) + 1, [], 0)
                self._shards.append(shard)
            index: int = self._open(shard).add(name, dtype, shape)
            shard.nbytes += nbytes
            shard.rows.append((name, dtype, shape))
            self._names[name] = None
            self._places.append((shard, index))
            self._sizes.append(nbytes)
            self._total += nbytes
            return len(self._places) - 1

    def write(self, tensor: int, data: Any) -> bool:
        shard, index = self._places[tensor]
        with self._used(shard, [tensor]) as writer:
            return bool(writer.write(index, data))

    def write_bytes(self, tensor: int, begin: int | None, data: Buffer) -> None:
        shard, index = self._places[tensor]
        with self._used(shard, [tensor]) as writer:
            writer.write_bytes(index, begin, data)

    def write_slice(
        self, tensor: int, index: Any, dtype: str, shape: Sequence[int], data: Buffer
    ) -> None:
        shard, at = self._places[tensor]
        with self._used(shard, [tensor]) as writer:
            writer.write_slice(at, index, dtype, shape, data)

    def copy(self, file: safe_open, tensors: Sequence[tuple[int, str]], cast: bool) -> None:
        by_shard: dict[_Shard, list[tuple[int, str]]] = {}
        for tensor, name in tensors:
            self._refuse_written(tensor)
            by_shard.setdefault(self._places[tensor][0], []).append((tensor, name))
        for shard, pairs in by_shard.items():
            with self._used(shard, [tensor for tensor, _ in pairs]) as writer:
                writer.copy(file, [(self._places[i][1], name) for i, name in pairs], cast)

    def missing(self) -> list[int]:
        incomplete: dict[_Shard, set[int]] = {}
        result = []
        self._refuse_own_call()
        self._check_open()  # first: a thread that completes the model may hold the lock for long
        with self._lock:
            for tensor, (shard, index) in enumerate(self._places):
                if shard.is_complete or not self._sizes[tensor]:
                    continue
                if shard.writer is not None and shard not in incomplete:
                    incomplete[shard] = set(shard.writer.missing())
                if shard.writer is None or index in incomplete[shard]:
                    result.append(tensor)
        return result

    @property
    def nbytes_written(self) -> int:
        return sum(shard.nbytes_written for shard in self._shards)

    def add_companion(self, name: str, data: bytes) -> None:
        """Adds a small file. See ModelFiles."""
        self._files.add_companion(name, data)

    def commit(self) -> None:
        """Completes the files and replaces the old model.

        Raises SafetensorError, which names missing tensors, and leaves the writer as it was.
        """
        ident = threading.get_ident()
        with self._lock:
            if self._callers:
                raise still_writing_error()
            missing = self.missing()
            if missing:
                raise self._missing_error(missing)
            self._is_committing = True
            self._callers.add(ident)
        try:
            self._commit()
        finally:
            self._is_closed = True
            self._callers.discard(ident)

    def _commit(self) -> None:
        if not self._shards:
            self._shards.append(_Shard(1, [], 0))
        for shard in self._shards:
            if not shard.is_complete:
                self._complete(shard)
        names_of = [[row[0] for row in shard.rows] for shard in self._shards]
        digests = [each for shard in self._shards for each in shard.digests or ()]
        self._files.commit(Split(names_of, self._total), digests if self._options.sums else None)

    def _missing_error(self, missing: Sequence[int]) -> SafetensorError:
        names = list(self._names)
        text = ", ".join(f"`{names[i]}`" for i in missing[:5]) + ", ..." * (len(missing) > 5)
        return failure(
            "missing_tensors",
            f"Error while serializing: {len(missing)} of {len(names)} tensors "
            f"{'was' if len(missing) == 1 else 'were'} not written: {text}",
            subject=names[missing[0]],
        )

    @property
    def is_committed(self) -> bool:
        """Whether files have taken their places, which cannot be undone."""
        return self._files.is_committed

    @property
    def is_in_call(self) -> bool:
        """Whether this thread is within a call."""
        return threading.get_ident() in self._callers

    def abort(self) -> None:
        """Removes everything that was written. Does nothing after `commit`."""
        with self._lock:  # which threads hold that make or complete a file
            self._is_closed = True
            for shard in self._shards:
                if shard.writer is not None:
                    shard.writer.abort()
            self._files.abort()

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        """Holds the lock, and counts a call of this thread, unless the writer is not open."""
        ident = self._refuse_own_call()
        with self._lock:
            self._check_open()
            self._callers.add(ident)
            try:
                yield
            finally:
                self._callers.discard(ident)

    def _refuse_own_call(self) -> int:
        """Raises if this thread is within a call. Returns its identifier. Needs no lock: of two
        threads, one might hold the lock, and the other one the lock of a progress."""
        ident = threading.get_ident()
        if ident in self._callers:
            raise own_call_error()
        return ident

    def _check_open(self) -> None:
        if self._is_closed or self._is_committing:
            raise closed_error(is_closing=not self._is_closed)

    @contextlib.contextmanager
    def _used(self, shard: _Shard, tensors: Sequence[int]) -> Iterator[Any]:
        """Yields the writer of a file for some of its tensors, and then completes a full file."""
        ident = self._refuse_own_call()
        with self._lock:
            self._check_open()
            for tensor in tensors:
                self._refuse_written(tensor)
            # Empty tensors may be written to a complete file.
            writer = _checker(shard.rows) if shard.is_complete else self._open(shard)
            self._callers.add(ident)
            shard.users += 1
        try:
            try:
                yield writer
            finally:
                with self._lock:
                    shard.users -= 1
            self._finish(shard)
        finally:
            self._callers.discard(ident)

    def _refuse_written(self, tensor: int) -> None:
        """Raises if the file of a tensor with bytes is complete."""
        shard, index = self._places[tensor]
        if shard.is_complete and self._sizes[tensor] != 0:
            name = shard.rows[index][0]
            raise failure(
                "written_twice",
                f"Error while serializing: tensor `{name}` was written before",
                subject=name,
            )

    def _open(self, shard: _Shard) -> Any:
        with self._lock:
            assert not shard.is_complete
            if shard.writer is None:
                target = self._files.temporary(shard.number)
                options, shard.digests = self._options.of_shards()
                if options.progress is not None:
                    options = options._replace(progress=self._report(options.progress, shard))
                rows = shard.rows if self._has_plan else None
                shard.writer = _extra._FileWriter(target, True, rows, options.of_file(target))
            return shard.writer

    def _report(self, progress: Progress, shard: _Shard) -> Progress:
        """Returns the progress of a file, which adds up the bytes of all files: those of tensors,
        if these are known. Else the total grows with the tensors that are added.

        The file's writer keeps what is returned, which therefore keeps neither of the two: garbage
        collection does not look into a writer."""
        last = 0
        nbytes = shard.nbytes if self._has_plan else None
        model = weakref.ref(self)  # the caller of the call that reports has it

        def report(done: int, total: int) -> None:
            nonlocal last
            of = model()
            assert of is not None
            if nbytes is not None:
                done = max(0, done - (total - nbytes))
            with of._progress_lock:
                of._done += done - last
                last = done
                progress(of._done, max(of._done, of._total))

        return report

    def _finish(self, shard: _Shard) -> None:
        """Completes a full file that has all bytes, none of which is still being written."""
        with self._lock:
            is_idle = shard.is_full and shard.users == 0 and shard.writer is not None
            if is_idle and shard.nbytes_written == shard.nbytes:
                self._complete(shard)

    def _complete(self, shard: _Shard) -> None:
        with self._lock:
            self._open(shard).commit()
            shard.is_complete = True
            shard.writer = None


def _checker(rows: list[Row]) -> Any:
    """Returns a writer of these tensors that only checks what it is given."""
    return _extra._FileWriter(lambda offset, view: None, True, rows, SaveArguments(layout="given"))

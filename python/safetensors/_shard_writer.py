"""Writes a model tensor by tensor: its files, and their index."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

from . import _core
from ._core import SafetensorError, safe_open
from ._model_files import ModelFiles
from ._specs import Row
from ._split import Split, parse_size, split
from ._typing import Buffer, Path, Progress


class _Shard:
    """A file of the model. Its writer is open from its first tensor until it is complete."""

    def __init__(self, number: int, rows: List[Row], nbytes: int) -> None:
        self.number = number
        self.rows = rows
        self.nbytes = nbytes
        self.writer: Any = None
        self.is_complete = False


class ShardWriter:
    """Has the methods of a _FileWriter, for a folder.

    Tensors are divided among files as `save_files` does it. Without rows, they are added one by
    one: a file is completed when the next tensor does not fit.

    Thread safety: several threads may write at once.
    """

    def __init__(
        self,
        folder: Path,
        rows: Optional[List[Row]],
        max_shard_size: Union[int, str],
        name: str,
        metadata: Optional[Dict[str, str]],
        layout: str,
        fsync: bool,
        budget_bytes: int,
        progress: Optional[Progress],
    ) -> None:
        self._options = (metadata, layout, fsync, budget_bytes)
        self._progress = progress
        self._lock = threading.RLock()
        self._most = parse_size(max_shard_size)
        self._places: List[Tuple[_Shard, int]] = []  # by index of the tensor
        self._sizes: List[int] = []
        self._names: Dict[str, None] = {}  # in the order of the indices
        self._shards: List[_Shard] = []
        self._done = 0
        self._total = 0
        self._has_plan = rows is not None
        if rows is not None:
            self._divide(rows)
        self._files = ModelFiles(folder, name, fsync)

    def _divide(self, rows: List[Row]) -> None:
        places = _core._plan_layout(rows, None, "given")[1]  # checks the rows
        self._sizes = [nbytes for _, nbytes in places]
        self._total = sum(self._sizes)
        sizes = {row[0]: nbytes for row, nbytes in zip(rows, self._sizes, strict=True)}
        by_name = {row[0]: row for row in rows}
        found: Dict[str, Tuple[_Shard, int]] = {}
        for number, names in enumerate(split(sizes, self._most).shards, 1):
            rows_of = [by_name[name] for name in names]
            shard = _Shard(number, rows_of, sum(sizes[name] for name in names))
            self._shards.append(shard)
            found.update((name, (shard, i)) for i, name in enumerate(names))
        self._places = [found[row[0]] for row in rows]
        self._names = {row[0]: None for row in rows}

    def add(self, name: str, dtype: str, shape: Sequence[int]) -> int:
        """Adds a tensor to the last file, or to a new one. Returns its index."""
        nbytes = _core._plan_layout([(name, dtype, shape)], None, "given")[1][0][1]
        with self._lock:
            if name in self._names:
                raise SafetensorError(f"Error while serializing: tensor `{name}` was added before")
            shard = self._shards[-1] if self._shards else None
            if shard is None or (shard.rows and shard.nbytes + nbytes > self._most):
                if shard is not None:
                    self._complete(shard)
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
        done = bool(self._writer_for(tensor).write(index, data))
        self._finish(shard)
        return done

    def write_bytes(self, tensor: int, begin: Optional[int], data: Buffer) -> None:
        shard, index = self._places[tensor]
        self._writer_for(tensor).write_bytes(index, begin, data)
        self._finish(shard)

    def write_slice(
        self, tensor: int, index: Any, dtype: str, shape: Sequence[int], data: Buffer
    ) -> None:
        shard, at = self._places[tensor]
        self._writer_for(tensor).write_slice(at, index, dtype, shape, data)
        self._finish(shard)

    def copy(self, file: safe_open, tensors: Sequence[Tuple[int, str]], cast: bool) -> None:
        by_shard: Dict[_Shard, List[Tuple[int, str]]] = {}
        writers: Dict[_Shard, Any] = {}
        for tensor, name in tensors:
            shard, index = self._places[tensor]
            writers[shard] = self._writer_for(tensor)
            by_shard.setdefault(shard, []).append((index, name))
        for shard, pairs in by_shard.items():
            writers[shard].copy(file, pairs, cast)
            self._finish(shard)

    def missing(self) -> List[int]:
        incomplete: Dict[_Shard, Set[int]] = {}
        result = []
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
        return sum(
            shard.nbytes if shard.is_complete else shard.writer.nbytes_written
            for shard in self._shards
            if shard.is_complete or shard.writer is not None
        )

    def commit(self) -> None:
        """Completes the files and replaces the old model.

        Raises SafetensorError, which names missing tensors, and leaves the writer as it was.
        """
        missing = self.missing()
        if missing:
            names = list(self._names)
            text = ", ".join(f"`{names[i]}`" for i in missing[:5]) + ", ..." * (len(missing) > 5)
            error = SafetensorError(
                f"Error while serializing: {len(missing)} of {len(names)} tensors "
                f"{'was' if len(missing) == 1 else 'were'} not written: {text}"
            )
            error.code, error.subject = "missing_tensors", names[missing[0]]
            raise error
        if not self._shards:
            self._shards.append(_Shard(1, [], 0))
        for shard in self._shards:
            if not shard.is_complete:
                self._complete(shard)
        names_of = [[row[0] for row in shard.rows] for shard in self._shards]
        self._files.commit(Split(names_of, self._total))

    def abort(self) -> None:
        for shard in self._shards:
            if shard.writer is not None:
                shard.writer.abort()
        self._files.abort()

    def _writer_for(self, tensor: int) -> Any:
        """Returns the writer of the file that holds a tensor."""
        shard, index = self._places[tensor]
        if not shard.is_complete:
            return self._open(shard)
        if self._sizes[tensor] == 0:  # complete without it
            return _checker(shard.rows)
        name = shard.rows[index][0]
        raise SafetensorError(f"Error while serializing: tensor `{name}` was written before")

    def _open(self, shard: _Shard) -> Any:
        with self._lock:
            assert not shard.is_complete
            if shard.writer is None:
                metadata, layout, fsync, budget = self._options
                shard.writer = _core._FileWriter(
                    self._files.temporary(shard.number),
                    True,
                    shard.rows if self._has_plan else None,
                    metadata,
                    layout,
                    fsync,
                    budget,
                    self._report() if self._progress is not None else None,
                    self._files.rights_of,
                )
            return shard.writer

    def _report(self) -> Progress:
        """Returns the progress of a file, which adds up the bytes of all files."""
        last = 0

        def report(done: int, _: int) -> None:
            nonlocal last
            assert self._progress is not None
            with self._lock:
                self._done += done - last
                last = done
                self._progress(self._done, max(self._done, self._total))

        return report

    def _finish(self, shard: _Shard) -> None:
        """Completes a planned file whose tensors are all written."""
        with self._lock:
            if not self._has_plan or shard.is_complete or shard.writer is None:
                return
            if shard.writer.nbytes_written == shard.nbytes and not shard.writer.missing():
                self._complete(shard)

    def _complete(self, shard: _Shard) -> None:
        with self._lock:
            self._open(shard).commit()
            shard.is_complete = True
            shard.writer = None


def _checker(rows: List[Row]) -> Any:
    """Returns a writer of these tensors that only checks what it is given."""
    return _core._FileWriter(
        lambda offset, view: None, True, rows, None, "given", False, 0, None, None
    )

"""Computes digests of the tensors of files, several at a time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .. import _core, _extra
from .._errors import failure
from .._paths import open_at_once
from .._reading import version_of
from .sums import BLOCK_SIZE, SHA256, XXH3, Digests, FileSums

_STEP = 128 << 10
"""Bytes that are read at a time: they stay in the processor's cache until they are hashed. The same
as in src/check/make_sums.cpp."""
_MAX_THREADS = 8
_WORTH_THREADS = 8 << 20

Advance = Callable[[int], object]
"""Called with the number of bytes that were hashed."""
Read = Callable[[int, int], bytes]
"""Called as `read(begin, nbytes)`, by several threads at once."""


class Job(NamedTuple):
    """A tensor to be hashed."""

    name: str
    dtype: str
    shape: Sequence[int]
    begin: int
    """The offset of its first byte in the file."""
    nbytes: int
    read: Read


class Found(NamedTuple):
    """The digests of a tensor."""

    digests: Digests
    blocks: bytes
    """XXH3-64 of each block; empty if there was no block size."""


class FileDigests:
    """The digests of a file and its tensors."""

    def __init__(self, file: FileSums, tensors: dict[str, Found]) -> None:
        self.file = file
        self.tensors = tensors


Known = Mapping[str, tuple[str, bytes] | None]
"""XXH3-128 and the blocks of tensors that were hashed while they were written; None for others."""


def of_tensor(job: Job, algorithms: Sequence[str], block_size: int, advance: Advance) -> Found:
    xxh3 = _extra._TensorHasher(job.dtype, job.shape, block_size)
    sha256 = hashlib.sha256(xxh3.start)
    updates: list[Callable[[bytes], None]] = []
    if XXH3 in algorithms or block_size:
        updates.append(xxh3.update)
    if SHA256 in algorithms:
        updates.append(sha256.update)
    end = job.begin + job.nbytes
    for begin in range(job.begin, end, _STEP):
        chunk = job.read(begin, min(_STEP, end - begin))
        for update in updates:
            update(chunk)
        advance(len(chunk))
    found = {XXH3: xxh3.digest().partition(":")[2], SHA256: sha256.hexdigest()}
    return Found({algorithm: found[algorithm] for algorithm in algorithms}, xxh3.blocks())


def of_bytes(read: Read, nbytes: int, advance: Advance) -> str:
    """Returns the SHA-256 of the first bytes, such as those of a whole file."""
    sha256 = hashlib.sha256()
    for begin in range(0, nbytes, _STEP):
        chunk = read(begin, min(_STEP, nbytes - begin))
        sha256.update(chunk)
        advance(len(chunk))
    return sha256.hexdigest()


def of_header(start: bytes) -> Digests:
    """Returns the digests of a file up to its data."""
    xxh3 = _extra._xxh3_128(start).partition(":")[2]
    return {XXH3: xxh3, SHA256: hashlib.sha256(start).hexdigest()}


class Tasks:
    """Computes digests on several threads, those of the longest tensors and files first."""

    def __init__(self, advance: Advance | None = None) -> None:
        """`advance` is called by one thread at a time."""
        self._advance = advance
        self._lock = threading.Lock()
        self._tasks: list[tuple[int, Callable[[], None]]] = []

    def add_tensor(
        self, job: Job, algorithms: Sequence[str], block_size: int, done: Callable[[Found], object]
    ) -> None:
        def work() -> None:
            done(of_tensor(job, algorithms, block_size, self._report))

        self._tasks.append((job.nbytes, work))

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors and files that were added."""
        return sum(nbytes for nbytes, _ in self._tasks)

    def add_file(self, read: Read, nbytes: int, done: Callable[[str], object]) -> None:
        """Adds the SHA-256 of a whole file."""

        def work() -> None:
            done(of_bytes(read, nbytes, self._report))

        self._tasks.append((nbytes, work))

    def run(self, threads: int = _MAX_THREADS) -> None:
        """Blocks until all digests are computed. Raises the error of the first task that failed."""
        self._tasks.sort(key=lambda task: -task[0])
        threads = min(threads, len(self._tasks), processors())
        if threads < 2 or sum(task[0] for task in self._tasks) < _WORTH_THREADS:
            for _, work in self._tasks:
                work()
            return
        from .._workers import Workers

        with Workers(threads, "safetensors-hash") as pool:
            futures = [pool.submit(work) for _, work in self._tasks]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._is_stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    _is_stopped = False

    def _report(self, nbytes: int) -> None:
        if self._is_stopped:
            raise failure("io", "the digests were stopped")
        if self._advance is not None:
            with self._lock:
                self._advance(nbytes)


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # sandboxes refuse the call
            return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class HashedFile:
    """A file whose digests are computed. A context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb", buffering=0, opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            self._handle = _core._safe_open_handle(file, "np", backend="pread")
        self.nbytes = status.st_size
        self.version = version_of(status)
        try:
            self.start = self.read(0, _core._data_begin(self._handle))
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def read(self, begin: int, nbytes: int) -> bytes:
        return _core._read_range(self._handle, begin, nbytes)

    def jobs(self) -> list[Job]:
        jobs = []
        for name in self._handle.offset_keys():
            meta = self._handle.get_tensor_meta(name)
            begin, end = (len(self.start) + offset for offset in meta.data_offsets)
            jobs.append(Job(name, meta.dtype, meta.shape, begin, end - begin, self.read))
        return jobs


def add_file(
    tasks: Tasks,
    file: HashedFile,
    algorithms: Sequence[str],
    known: Known | None = None,
    jobs: Sequence[Job] | None = None,
    whole: bool = False,
) -> FileDigests:
    """Returns digests of a file. Those that are not known are complete after `tasks.run()`.

    Args:
        algorithms: XXH3 and possibly SHA256.
        known: XXH3-128 and the blocks of each tensor; None for a tensor that is to be read.
        jobs: the tensors of the file, if the caller has them.
        whole: whether to compute the SHA-256 of the whole file.
    """
    header = algorithms[-1]
    sums = FileSums(file.nbytes, {header: of_header(file.start)[header]})
    found = FileDigests(sums, {})
    for name, each in (known or {}).items():
        if each is not None:
            found.tensors[name] = Found({XXH3: each[0]}, each[1])
    if known is None or len(found.tensors) < len(known) or SHA256 in algorithms:
        for job in file.jobs() if jobs is None else jobs:
            before = found.tensors.get(job.name)
            if before is None:
                done = functools.partial(found.tensors.__setitem__, job.name)
                tasks.add_tensor(job, algorithms, BLOCK_SIZE, done)
            elif SHA256 in algorithms:
                tasks.add_tensor(job, [SHA256], 0, functools.partial(_add_digests, before))
    if whole:

        def take(digest: str) -> None:
            found.file = sums._replace(sha256=digest)

        tasks.add_file(file.read, file.nbytes, take)
    return found


def _add_digests(before: Found, more: Found) -> None:
    before.digests.update(more.digests)


def of_file(path: str, algorithms: Sequence[str], known: Known | None = None) -> FileDigests:
    """Returns the digests of a file: see `add_file`."""
    tasks = Tasks()
    with HashedFile(path) as file:
        found = add_file(tasks, file, algorithms, known)
        tasks.run()
    return found

"""Computes digests of the tensors of files, several at a time."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._core import SafetensorError, safe_open
from ._sums import BLOCK_SIZE, SHA256, XXH3, Digests, FileSums

_STEP = 256 << 10
"""Bytes that are read at a time: they stay in the processor's cache until they are hashed."""
_MOST_THREADS = 8

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


class FileDigests(NamedTuple):
    """The digests of a file and its tensors."""

    file: FileSums
    tensors: Dict[str, Found]


def of_tensor(job: Job, algorithms: Sequence[str], block_size: int, advance: Advance) -> Found:
    xxh3 = _core._TensorHasher(job.dtype, job.shape, block_size)
    shape = ",".join(map(str, job.shape))
    sha256 = hashlib.sha256(f"{job.dtype} [{shape}]\n".encode())
    updates: List[Callable[[bytes], None]] = []
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


def of_tensors(
    jobs: Sequence[Job],
    algorithms: Sequence[str],
    block_size: int = 0,
    advance: Optional[Advance] = None,
) -> Dict[str, Found]:
    """Returns the digests by name. The largest tensors come first, each on one thread.

    `advance` is called by one thread at a time.
    """
    found: Dict[str, Found] = {}
    lock = threading.Lock()

    def report(nbytes: int) -> None:
        if advance is not None:
            with lock:
                advance(nbytes)

    def hash_one(job: Job) -> None:
        found[job.name] = of_tensor(job, algorithms, block_size, report)

    run(hash_one, sorted(jobs, key=lambda job: -job.nbytes), sum(job.nbytes for job in jobs))
    return found


def run(work: Callable[[Any], object], jobs: Sequence[Any], nbytes: int) -> None:
    """Calls `work` for each job, on several threads if they are worth it."""
    threads = min(len(jobs), _MOST_THREADS, len(os.sched_getaffinity(0)))
    if threads < 2 or nbytes < 8 << 20:
        for job in jobs:
            work(job)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, "safetensors-hash") as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def of_file(
    path: str,
    algorithms: Sequence[str],
    known: Optional[Mapping[str, Optional[Tuple[str, bytes]]]] = None,
    advance: Optional[Advance] = None,
) -> FileDigests:
    """Returns the digests of a file.

    Args:
        path: the file.
        algorithms: XXH3 and possibly SHA256.
        known: XXH3-128 and the blocks of tensors, if they are known; None for the others.
        advance: see `of_tensors`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = _reader(fd, path)
        start = read(0, 8 + int.from_bytes(read(0, 8), "little"))
        if SHA256 in algorithms:
            header = {SHA256: hashlib.sha256(start).hexdigest()}
        else:
            header = {XXH3: _core._xxh3_128(start).partition(":")[2]}
        file = FileSums(os.fstat(fd).st_size, header)
        tensors = {
            name: Found({XXH3: each[0]}, each[1]) for name, each in (known or {}).items() if each
        }
        if known is None or len(tensors) < len(known) or SHA256 in algorithms:
            jobs = _jobs(path, len(start), read)
            missing = [job for job in jobs if job.name not in tensors]
            tensors.update(of_tensors(missing, algorithms, BLOCK_SIZE, advance))
            if SHA256 in algorithms:
                rest = [job for job in jobs if SHA256 not in tensors[job.name].digests]
                for name, found in of_tensors(rest, [SHA256], 0, advance).items():
                    tensors[name].digests.update(found.digests)
        return FileDigests(file, tensors)
    finally:
        os.close(fd)


def _jobs(path: str, data_begin: int, read: Read) -> List[Job]:
    # As bytes, because a str could be taken for a URL.
    with safe_open(os.fsencode(path), "np", backend="pread") as handle:
        metas = [(name, handle.get_tensor_meta(name)) for name in handle.offset_keys()]
    jobs = []
    for name, meta in metas:
        begin, end = meta.data_offsets
        jobs.append(Job(name, meta.dtype, meta.shape, data_begin + begin, end - begin, read))
    return jobs


def _reader(fd: int, path: str) -> Read:
    def read(begin: int, nbytes: int) -> bytes:
        pieces = []
        while nbytes > 0:
            piece = os.pread(fd, nbytes, begin)
            if not piece:
                raise SafetensorError(f"{path}: the file became shorter while it was read")
            pieces.append(piece)
            begin, nbytes = begin + len(piece), nbytes - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    return read

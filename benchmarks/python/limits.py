"""What the machine itself can do: nothing that loads or saves the same can take less."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from operations import Args
from work import Work, fresh

PIECE = 4 << 20
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14


def in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work` with each number and the number of threads, at the same time."""
    threads = [threading.Thread(target=work, args=(i, count)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def touched(nbytes: int, huge: bool = True) -> Any:
    """Memory that was written to, in huge pages where there are any."""
    area = mmap.mmap(-1, max(nbytes, 1), PRIVATE)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(area, "u1")
    array[:] = 1
    return array


def memcpy(args: Args) -> Work:
    """Copy as many bytes between memory that is touched already, by all cores."""
    source, target = touched(args["nbytes"]), touched(args["nbytes"])

    def copy(index: int, count: int) -> None:
        part = slice(len(source) * index // count, len(source) * (index + 1) // count)
        np.copyto(target[part], source[part])

    return Work(lambda: in_threads(copy, os.cpu_count() or 1))


def read(args: Args) -> Work:
    """read() the file into memory that is touched already, by all cores."""
    path, direct = args["path"], args.get("direct", False)
    size = os.path.getsize(path)
    # For one run each: a large buffer that is kept would push the files out of the page cache.
    memory = []

    def allocate() -> None:
        memory.append(memoryview(touched(-(-size // PIECE) * PIECE)))

    def run() -> Any:
        whole = memory.pop()
        flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
        descriptor = os.open(path, flags)

        def read_part(index: int, count: int) -> None:
            for begin in range(index * PIECE, size, count * PIECE):
                os.preadv(descriptor, [whole[begin : begin + PIECE]], begin)

        try:
            in_threads(read_part, os.cpu_count() or 1)
        finally:
            os.close(descriptor)
        return whole

    return Work(run, before=allocate)


def read_direct(args: Args) -> Work:
    """The same past the page cache."""
    return read({**args, "direct": True})


def new(nbytes: int, how: str) -> tuple[Any, Callable[[int, int], object]]:
    """Memory that was never written to, and what has the system provide a range of it."""
    area = mmap.mmap(-1, max(nbytes, 1), PRIVATE)
    if how == "huge" and hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(area, "u1")
    if how != "madvise":
        return array, lambda begin, length: None
    madvise, address = ctypes.CDLL(None).madvise, array.ctypes.data

    def provide(begin: int, length: int) -> None:
        madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(length), POPULATE_WRITE)

    return array, provide


def read_new(args: Args) -> Work:
    """read() the file into new memory, which the kernel has to clear first."""
    path, size = args["path"], os.path.getsize(args["path"])

    def run() -> Any:
        array, provide = new(size, args["how"])
        whole = memoryview(array)
        with open(path, "rb", buffering=0) as file:

            def read_part(index: int, count: int) -> None:
                for begin in range(index * PIECE, size, count * PIECE):
                    provide(begin, min(PIECE, size - begin))
                    os.preadv(file.fileno(), [whole[begin : begin + PIECE]], begin)

            in_threads(read_part, args["threads"])
        return whole

    return Work(run)


def copy_new(args: Args) -> Work:
    """Copy as many bytes to new memory."""
    source = touched(args["nbytes"])

    def run() -> Any:
        target, provide = new(len(source), args["how"])

        def copy(index: int, count: int) -> None:
            for begin in range(index * PIECE, len(source), count * PIECE):
                part = slice(begin, min(begin + PIECE, len(source)))
                provide(begin, part.stop - begin)
                np.copyto(target[part], source[part])

        in_threads(copy, args["threads"])
        return target

    return Work(run)


def touch(args: Args) -> Work:
    """Map the file and read a byte of each page."""
    path = args["path"]

    def run() -> int:
        with open(path, "rb") as file:
            area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return int(np.frombuffer(area, "u1")[::4096].sum(dtype="i8"))

    return Work(run)


def write(args: Args) -> Work:
    """write() as many bytes to a new file."""
    # As tensors: huge pages would leave the page cache only what the host has taken back.
    source = memoryview(touched(args["nbytes"], huge=False))
    out = Path(args["out"])

    def run() -> None:
        with open(out, "wb", buffering=0) as file:
            for begin in range(0, len(source), 16 * PIECE):
                file.write(source[begin : begin + 16 * PIECE])

    return Work(run, before=fresh(out))


def objects(args: Args) -> Work:
    """Make a torch tensor of a tensor, the cheapest way from Python, so many times."""
    import torch

    again, names = torch.zeros(4).detach, [str(i) for i in range(args["count"])]
    return Work(lambda: {name: again() for name in names})


def one_object(args: Args) -> Work:
    """The same, the time of one, kept nowhere."""
    import torch

    again, count = torch.zeros(4).detach, args["count"]

    def run() -> None:
        for _ in range(count):
            again()

    return Work(run, calls=count)


def one_array(args: Args) -> Work:
    """Make an array of an array, the cheapest way from Python."""
    again, count = np.zeros(4).view, args["count"]

    def run() -> None:
        for _ in range(count):
            again()

    return Work(run, calls=count)


def names(args: Args) -> Work:
    """A list of as many new strings as keys() makes."""
    wide = [f"model.layers.{i // 1000}.mlp.experts.{i % 1000}" for i in range(args["count"])]
    encoded = [name.encode() for name in wide]
    return Work(lambda: [name.decode() for name in encoded])

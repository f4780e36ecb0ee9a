"""Records the writes of a change in place, and makes the files that a power failure may leave.

A write is on the disk for certain when the file was flushed after it. Of the writes since, any may
be there, in any order, and the last one in part.
"""

import ctypes
import itertools
import os
import pathlib
import random
from typing import NamedTuple

from support import libc_calls

SECTOR_NBYTES = 512


class Write(NamedTuple):
    """A write to a file."""

    path: str
    offset: int
    data: bytes


class Flush(NamedTuple):
    """All writes to a file, or all changes of a folder's entries, reach the disk."""

    path: str


class Entry(NamedTuple):
    """The journal appears, flushed with its name; or, with None, its name is removed."""

    path: str
    data: bytes | None


class Recorder:
    """Records what a change does, in order: in `steps`, while it is a context."""

    def __init__(self):
        self.steps = []

    def __enter__(self):
        self._moved, self._flushed = None, set()
        calls = ("pwrite", "fsync", "renameat", "unlinkat")
        self._replaced = libc_calls.replaced({name: getattr(self, f"_{name}") for name in calls})
        self._replaced.__enter__()
        return self

    def __exit__(self, *_):
        self._replaced.__exit__(*_)

    def _pwrite(self, function, args):
        fd, address, _, offset = args
        count = function(*args)
        if not _is_private(path := _path_of(fd)):
            self.steps.append(Write(path, offset, ctypes.string_at(address, count)))
        return count

    def _fsync(self, function, args):
        done = function(*args)
        path = _path_of(args[0])
        if os.path.isdir(path):
            self._flush_folder(path)
        elif not _is_private(path):
            self.steps.append(Flush(path))
        return done

    def _unlinkat(self, function, args):
        done = function(*args)
        if args[1] == b"journal":
            self.steps.append(Entry(str(self._moved), None))
        return done

    def _renameat(self, function, args):
        done = function(*args)
        self._moved = pathlib.Path(_path_of(args[2])) / os.fsdecode(args[3])
        return done

    def _flush_folder(self, folder):
        """After the journal has its name, its folder and the one around must be flushed."""
        path = self._moved
        if path is None or path.exists():
            self._flushed.add(folder)
        else:
            self.steps.append(Flush(folder))
        if path is not None and self._flushed == {str(path.parent), str(path.parent.parent)}:
            self.steps.append(Entry(str(path), path.read_bytes()))
            self._flushed = set()

    def run(self, folder, work):
        """Runs `work` on the files of a folder; returns these before it, by path."""
        before = {str(path): path.read_bytes() for path in folder.iterdir()}
        with self:
            work()
        return before


def _path_of(fd):
    return os.readlink(f"/proc/self/fd/{fd}")


def _is_private(path):
    """Returns whether a file is a journal, or will be."""
    return pathlib.Path(path).parent.name.endswith(".journal")


def final(before, steps):
    """Returns the files after all steps."""
    files = {path: bytearray(data) for path, data in before.items()}
    for step in steps:
        if isinstance(step, Write):
            files[step.path][step.offset : step.offset + len(step.data)] = step.data
    return {path: bytes(data) for path, data in files.items()}


def outcomes(before, steps, seed=0, shuffles=4):
    """Yields each state of the files that a power failure may leave, once.

    Args:
        before: the files, by path.
        steps: what a change did, as Recorder has it.
        seed, shuffles: besides the order in which they were made, and its reverse, so many random
            orders of the writes that were not flushed are tried.
    """
    rng = random.Random(seed)
    disk, journal, waiting, maybe = dict(before), {}, [], {}
    seen = set()
    for step in [*steps, None]:
        for chosen, names in itertools.product(_chosen(waiting, rng, shuffles), [{}, maybe]):
            files = {path: bytearray(data) for path, data in disk.items()}
            for write in chosen:
                end = write.offset + len(write.data)
                files[write.path][write.offset : end] = write.data
            found = {path: bytes(data) for path, data in files.items()}
            found |= {path: data for path, data in (journal | names).items() if data is not None}
            key = tuple(sorted((path, hash(data)) for path, data in found.items()))
            if key not in seen:
                seen.add(key)
                yield found
        if isinstance(step, Write):
            waiting.append(step)
        elif isinstance(step, Entry) and step.data is not None:
            journal[step.path] = step.data
        elif isinstance(step, Entry):
            maybe = {**maybe, step.path: None}
        elif isinstance(step, Flush):
            if pathlib.Path(step.path).is_dir():
                journal, maybe = journal | maybe, {}
            for write in (each for each in waiting if each.path == step.path):
                data = bytearray(disk[write.path])
                data[write.offset : write.offset + len(write.data)] = write.data
                disk[write.path] = bytes(data)
            waiting = [each for each in waiting if each.path != step.path]


def _chosen(waiting, rng, shuffles):
    """Yields writes that may have reached the disk: beginnings of several orders."""
    orders = [waiting, waiting[::-1]]
    orders += [rng.sample(waiting, len(waiting)) for _ in range(shuffles if waiting[1:] else 0)]
    for order in orders:
        for count in range(len(order) + 1):
            yield order[:count]
            if count and len(order[count - 1].data) > SECTOR_NBYTES:
                last = order[count - 1]
                half = len(last.data) // 2 // SECTOR_NBYTES * SECTOR_NBYTES
                yield [*order[: count - 1], last._replace(data=last.data[:half])]

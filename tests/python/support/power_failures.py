"""Records the writes of a change in place, and makes the files that a power failure may leave.

A write is on the disk for certain when the file was flushed after it. Of the writes since, any may
be there, in any order, and the last one in part.
"""

import itertools
import os
import pathlib
import random
from typing import NamedTuple

from safetensors._saving import journal as _journal
from safetensors._saving.folder import Folder
from support import replaced_calls

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
        calls = {"pwrite": self._pwrite, "fsync": self._fsync}
        self._folder = {name: getattr(Folder, name) for name in ("move", "remove", "flush")}
        others = [
            (Folder, "move", lambda *args: self._move(*args)),
            (Folder, "remove", lambda *args: self._remove(*args)),
            (Folder, "flush", lambda *args: self._flush(*args)),
        ]
        self._moved, self._flushed = None, set()
        self._replaced = replaced_calls.replaced((_journal,), calls, others)
        return self

    def __exit__(self, *_):
        self._replaced.close()

    def _pwrite(self, fd, data, offset):
        count = os.pwrite(fd, data, offset)
        self.steps.append(Write(_path_of(fd), offset, bytes(data)[:count]))
        return count

    def _fsync(self, fd):
        os.fsync(fd)
        self.steps.append(Flush(_path_of(fd)))

    def _remove(self, folder, name):
        self._folder["remove"](folder, name)
        if name == _journal.JOURNAL:
            self.steps.append(Entry(str(self._moved), None))

    def _move(self, folder, name, target, to):
        self._folder["move"](folder, name, target, to)
        self._moved = pathlib.Path(target.path) / to

    def _flush(self, folder):
        """After the journal has its name, its folder and the one around must be flushed."""
        self._folder["flush"](folder)
        path = self._moved
        if path is None or path.exists():
            self._flushed.add(folder.path)
        else:
            self.steps.append(Flush(folder.path))
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

"""Records the system calls of a save, and makes the folders that a power failure may leave.

What is modelled is a file system with a journal: changes of names reach the disk in their order, a
rename at once, and the data of a file at any time before its flush, or not. A flush of a folder
brings all changes of its names, and those before them, to the disk.
"""

import codecs
import os
import pathlib
import re
from typing import NamedTuple

from support import children

CALLS = "openat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,write,pwrite64,fsync"
_FLUSHES = ("fsync", "fdatasync")
_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?(?: .*)?", re.DOTALL)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_AT = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')


class Change(NamedTuple):
    """A change of names: without `target`, `path` is removed; without `path`, `target` is made."""

    path: str | None
    target: str | None
    file: int
    """Which file it is, or -1 for a folder."""


class Data(NamedTuple):
    """A file has this content now."""

    file: int
    content: bytes


class Flush(NamedTuple):
    """A file, by its number, or a folder, by its path, reaches the disk."""

    what: object


def record(folder, code, *args):
    """Runs a script, which gets the folder and other arguments, and returns what it does in it.

    The files in the folder have the numbers 0, 1, ... in the order of their names.
    """
    log = folder.parent / "calls"
    prefix = ["strace", "-f", "-y", "-s", "1000000", "-e", f"trace={CALLS}", "-o", log]
    reader = _Reader(folder)
    children.run(code, folder, *args, prefix=prefix)
    for line in log.read_text(errors="surrogateescape").splitlines():
        match = _LINE.fullmatch(line)
        if match is not None and int(match[3]) >= 0:
            reader.read(*match.groups())
    return reader.events


class _Reader:
    """Makes events of lines of strace."""

    def __init__(self, folder):
        self.root = str(folder)
        self.files = {str(path): i for i, path in enumerate(sorted(folder.iterdir()))}
        self.contents = {i: bytearray(pathlib.Path(p).read_bytes()) for p, i in self.files.items()}
        self.offsets = {}
        self.events = []

    def read(self, call, arguments, result, opened):
        if call in ("write", "pwrite64", *_FLUSHES):
            path = arguments.partition("<")[2].partition(">")[0]
            if path == self.root or path.startswith(self.root + "/"):
                self._of_descriptor(call, path, arguments, int(result))
            return
        paths = [os.path.join(base, _decoded(name)) for base, name in _AT.findall(arguments)]
        if not any(path.startswith(self.root + "/") for path in paths):
            return
        if call == "openat":
            if "O_CREAT" in arguments:
                self._make(opened)
        elif call.startswith("mkdir"):
            self.events.append(Change(None, paths[0], -1))
        elif call.startswith("rename"):
            self.files[paths[1]] = self.files.pop(paths[0])
            self.events.append(Change(*paths, self.files[paths[1]]))
        else:
            self.events.append(Change(paths[0], None, self.files.pop(paths[0], -1)))

    def _make(self, path):
        self.files[path] = number = len(self.contents)
        self.contents[number] = bytearray()
        self.events.append(Change(None, path, number))

    def _of_descriptor(self, call, path, arguments, count):
        if call in _FLUSHES:
            self.events.append(Flush(self.files.get(path, path)))
            return
        number = self.files[path]
        data = _decoded_bytes(_TEXT.search(arguments)[1])[:count]
        if call == "pwrite64":
            begin = int(arguments.rpartition(", ")[2])
        else:
            begin = self.offsets.get(number, 0)
            self.offsets[number] = begin + count
        content = self.contents[number]
        content.extend(bytes(max(0, begin + count - len(content))))
        content[begin : begin + count] = data
        self.events.append(Data(number, bytes(content)))


def _decoded_bytes(text):
    return codecs.escape_decode(text.encode(errors="surrogateescape"))[0]


def _decoded(text):
    return os.fsdecode(_decoded_bytes(text))


class State(NamedTuple):
    """What may be on the disk."""

    files: dict
    """The number of each file, by path; -1 for a folder."""
    contents: dict
    """The contents of the files that the save has written, by number."""


def states(before, events):
    """Yields each state that a power failure may leave, once for each time, with that time.

    Args:
        before: the numbers of the files before, by path.
        events: what `record` returned.
    """
    for time in range(len(events) + 1):
        seen = set()
        changes = [each for each in events[:time] if isinstance(each, Change)]
        for count in range(_flushed(events[:time], changes), len(changes) + 1):
            files = _applied(before, changes[:count])
            for contents in _contents(files, events[:time]):
                key = (tuple(sorted(files.items())), tuple(sorted(contents.items())))
                if key not in seen:
                    seen.add(key)
                    yield time, State(files, contents)


def _flushed(events, changes):
    """Returns how many of the changes are on the disk for certain."""
    done = found = 0
    for each in events:
        if isinstance(each, Change):
            done += 1
        elif isinstance(each, Flush) and isinstance(each.what, str):
            for i, change in enumerate(changes[:done]):
                if each.what in [os.path.dirname(path) for path in change[:2] if path]:
                    found = max(found, i + 1)
    return found


def _applied(before, changes):
    files = dict(before)
    for change in changes:
        if change.path is not None:
            del files[change.path]
        if change.target is not None:
            files[change.target] = change.file
    return files


def _contents(files, events):
    """Yields contents of the files. Of those that were not flushed after the last write, all, none
    or one has what was written, or the others have."""
    now, flushed = {}, {}
    for each in events:
        if isinstance(each, Data):
            now[each.file] = each.content
        elif isinstance(each, Flush) and each.what in now:
            flushed[each.what] = now[each.what]
    now = {number: now[number] for number in {*files.values()} & now.keys()}
    waiting = [number for number in now if now[number] != flushed.get(number)]
    yield now
    for lost in (
        {number: flushed.get(number, b"") for number in waiting},
        {number: bytes(len(now[number])) for number in waiting},
        {number: now[number][: len(now[number]) // 2] for number in waiting},
    ):
        yield now | lost
        for number in waiting:
            yield now | {number: lost[number]}
            yield now | lost | {number: now[number]}


def put(state, pool):
    """Makes the files of a state, in the folder where they were, which is empty.

    Args:
        pool: paths of files, by number, which get links, so that they keep their inodes and times.
            Others, and those with other contents, are written.
    """
    for path, number in sorted(state.files.items()):
        if number == -1:
            os.mkdir(path, 0o700)
            continue
        content = state.contents.get(number, b"")
        same = pool.get(number)
        if same is not None and (number not in state.contents or same.read_bytes() == content):
            os.link(same, path)
        else:
            pathlib.Path(path).write_bytes(content)

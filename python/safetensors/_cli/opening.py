"""Opens the files that a user names, and standard input."""

import io
import os
import shutil
import stat
import sys
import tempfile
from typing import cast

from .._errors import failure
from .._paths import open_at_once
from .._reading import LENGTH_NBYTES, MAX_HEADER_NBYTES, Version, version_of
from .errors import CliError

STDIN = "-"
"""The path that means standard input. A file of this name is `./-`."""
CHUNK_NBYTES = 4 << 20


def refuse_stdin(command: str, *paths: "str | None") -> None:
    if STDIN in paths:
        raise CliError(f"{command} takes files, not standard input or output")


def open_input(path: str) -> io.FileIO:
    """Opens a file or standard input, unbuffered. The core later refuses files that are not
    regular."""
    if path == STDIN:
        file = _open_stdin()
        file.name = STDIN  # for errors
        return file
    return open(path, "rb", buffering=0, opener=open_at_once)


def open_regular(path: str) -> io.FileIO:
    """Opens a regular file. Refuses pipes and devices, because reading one may never end."""
    file = open(path, "rb", buffering=0, opener=open_at_once)  # noqa: SIM115
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        found = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
        raise CliError(f"{path}: expected a regular file, found {found}")
    return file


def refuse_changed(path: str, before: Version, now: os.stat_result) -> None:
    """Raises SafetensorError if a file is another one than before, or was written to."""
    if version_of(now) != before:
        text = f"{path} was replaced or written to while it was read"
        raise failure("file_changed", text, path=path)


class Watch:
    """Holds files open that other code reads, and tells whether one of them changes meanwhile."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[io.FileIO, Version]] = {}

    def open(self, path: str) -> io.FileIO:
        """Opens a regular file, before others read it. The file is closed with this object."""
        file = open_regular(path)
        self._files[path] = file, version_of(os.fstat(file.fileno()))
        return file

    def refuse_replaced(self, path: str) -> None:
        """Raises SafetensorError if the path leads to another file, or a changed one."""
        refuse_changed(path, self._files[path][1], os.stat(path))

    def refuse_changed(self) -> None:
        """Raises SafetensorError if a file was written to."""
        for path, (file, before) in self._files.items():
            refuse_changed(path, before, os.fstat(file.fileno()))

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()


def _open_stdin() -> io.FileIO:
    """Opens standard input, or a temporary copy of it if it is not a regular file."""
    if sys.stdin is None:
        raise CliError("standard input is closed")
    fd = sys.stdin.fileno()
    if os.isatty(fd):
        raise CliError("standard input is a terminal: name a file, or redirect one to it")
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return open(os.dup(fd), "rb", buffering=0)
    try:
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        with open(fd, "rb", closefd=False) as stream:
            start = stream.read(CHUNK_NBYTES)
            copy.write(start)
            if _may_be_safetensors(start):
                shutil.copyfileobj(stream, copy, CHUNK_NBYTES)
        return cast(io.FileIO, copy.detach())
    except OSError as error:
        where = tempfile.gettempdir()
        raise CliError(f"standard input: copying it to {where}: {error.strerror}") from None


def _may_be_safetensors(start: bytes) -> bool:
    """Returns whether the stream is worth copying. If not, the core explains its first bytes."""
    length = int.from_bytes(start[:LENGTH_NBYTES], "little")
    return 0 < length <= MAX_HEADER_NBYTES and start[LENGTH_NBYTES : LENGTH_NBYTES + 1] == b"{"

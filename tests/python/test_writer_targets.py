"""safe_create: file objects as targets, what they held before, their position, what they return."""

import io
import os
import socket
import time

import numpy as np
import pytest

from safetensors import numpy as stn
from safetensors import safe_create
from support.threads import together

SPECS = {"a": ("F32", (4,)), "b": ("U8", (1000,))}
A = np.arange(4, dtype="f4")
B = np.arange(1000, dtype="u1")


def _bytes_io(path):
    return io.BytesIO(path.read_bytes())


def _file(mode, buffering=-1):
    return lambda path: open(path, mode, buffering=buffering)


HELD = b"0123456789" * 1000
SEEKING = {
    "BytesIO": _bytes_io,
    "buffered": _file("r+b"),
    "unbuffered": _file("r+b", 0),
}


@pytest.mark.parametrize("target", SEEKING)
@pytest.mark.parametrize("begin", [0, 10, len(HELD) - 1, len(HELD), len(HELD) + 10])
def test_content_behind_the_position_survives(tmp_path, target, begin):
    """An aborted writer removes only what it has appended."""
    path = tmp_path / "f"
    path.write_bytes(HELD)
    specs = {"a": ("U8", (1 << 20,)), "b": ("U8", (100,))}
    with SEEKING[target](path) as file:
        file.seek(begin)
        writer = safe_create(file, specs if begin > 10 else {"b": specs["b"]})
        assert file.tell() == begin
        writer.write("b", bytes(100))
        if begin > 10:
            writer.write("a", bytes(1 << 20))
        writer.abort()
        assert file.tell() == begin
        file.flush()
        held = file.getvalue() if target == "BytesIO" else path.read_bytes()
    assert held[: min(begin, len(HELD))] == HELD[:begin]
    assert held[begin + 500 : len(HELD)] == HELD[begin + 500 :]
    if target != "unbuffered":
        assert len(held) == len(HELD)
    elif begin >= len(HELD):
        assert len(held) == begin


@pytest.mark.parametrize("mode", ["ab", "a+b"])
def test_a_file_opened_to_append_keeps_its_content(tmp_path, mode):
    (tmp_path / "f").write_bytes(HELD)
    with open(tmp_path / "f", mode) as file:
        file.seek(0)
        writer = safe_create(file, SPECS)
        writer.write("a", A)
        writer.write("b", B)
        writer.abort()
    assert (tmp_path / "f").read_bytes().startswith(HELD)


class _Yielding(io.BytesIO):
    """Lets other threads run between seek and write."""

    def seek(self, *args):
        position = super().seek(*args)
        time.sleep(0.01)
        return position


@pytest.mark.parametrize("count", [1, 4])
def test_the_position_of_an_object(count):
    """Threads write to an object that has one position, which the caller may move."""
    tensors = {str(i): np.full(100_000, i, "u1") for i in range(8)}
    file = _Yielding()
    with safe_create(file, tensors) as writer:

        def work(first):
            for i in range(first, 8, count):
                writer.write(str(i), tensors[str(i)])
                if count == 1:
                    file.seek(3)

        together(work, range(count))
    assert file.getvalue() == stn.save(tensors)
    assert file.tell() == len(file.getvalue())


def test_an_object_that_does_not_block():
    """A raw stream that returns None has written nothing."""
    reader, writing = socket.socketpair()
    with reader, writing, writing.makefile("wb", buffering=0) as file:
        writing.setblocking(False)
        with safe_create(file, {"a": ("U8", (64 << 20,))}) as writer:
            with pytest.raises(BlockingIOError, match="takes no bytes now"):
                writer.write("a", bytes(64 << 20))
            writer.abort()


def test_a_class_of_files_with_its_own_write(tmp_path):
    """It gets all bytes."""

    class Digest(io.FileIO):
        nbytes = 0

        def write(self, data):
            self.nbytes += len(data)
            return super().write(data)

    with Digest(tmp_path / "f", "w") as file:
        with safe_create(file, {"a": A}) as writer:
            writer.write("a", A)
        assert file.nbytes >= os.stat(tmp_path / "f").st_size
    assert (tmp_path / "f").read_bytes() == stn.save({"a": A})


def test_an_object_that_cannot_be_undone():
    """It was closed, or has no truncate: the exception that left the block is raised."""

    class NoTruncate(io.BytesIO):
        truncate = None

    def leave(file):
        with safe_create(file, SPECS) as writer, file:
            writer.write("a", A)
            raise ZeroDivisionError

    for file in (io.BytesIO(), NoTruncate()):
        with pytest.raises(ZeroDivisionError):
            leave(file)

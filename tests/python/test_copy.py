"""SafeWriter.copy: sources of every kind, and sources that change."""

import os
import pathlib
import tempfile
import threading
import time

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from safetensors._core import _safe_open_handle
from safetensors._saving.writer import safe_create, specs_of
from safetensors.numpy import save, save_file
from support import copies

BACKENDS = ["mmap", "pread", "direct"]


def copied(file, out, **options):
    """Copies all tensors of an open file to another one, and returns them."""
    with safe_create(out, file, **options) as writer:
        writer.copy(file)
    return copies.read(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["canonical", "blocks"])
def test_a_source_on_another_file_system(tmp_path, backend, layout):
    """The kernel or this process copies the bytes."""
    other = pathlib.Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    model = copies.tensors()
    with tempfile.TemporaryDirectory(dir=other) as folder:
        path = copies.write(pathlib.Path(folder) / "m", model)
        with safe_open(path, "np", backend=backend) as file:
            assert copies.same(copied(file, tmp_path / "out", layout=layout), model)
        path = copies.write(tmp_path / "m", model)
        with safe_open(path, "np", backend=backend) as file:
            assert copies.same(copied(file, pathlib.Path(folder) / "n", layout=layout), model)


def test_a_source_without_a_name(tmp_path):
    """A descriptor whose file has no name, in memory or removed, is copied from."""
    model = copies.tensors()
    path = tmp_path / "m"
    with open(copies.write(path, model), "rb", buffering=0) as held:
        path.unlink()
        with _safe_open_handle(held, "np", backend="pread") as file:
            assert copies.same(copied(file, tmp_path / "out"), model)
    if not hasattr(os, "memfd_create"):
        pytest.skip("no files in memory")
    with open(os.memfd_create("m"), "r+b", buffering=0) as held:
        held.write(save(model))
        held.name = "memory"  # for errors; else it is the descriptor's number
        with _safe_open_handle(held, "np", backend="pread") as file:
            assert copies.same(copied(file, tmp_path / "out"), model)


def test_a_target_that_does_not_seek(tmp_path):
    """A pipe gets the tensors in its own order."""
    model = copies.tensors()
    path = copies.write(tmp_path / "m", model)
    got = []
    with safe_open(path, "np") as file:
        reader, writer_end = os.pipe()

        def drain():
            with open(reader, "rb") as stream:
                got.append(stream.read())

        thread = threading.Thread(target=drain)
        thread.start()
        with open(writer_end, "wb") as pipe, safe_create(pipe, file) as writer:
            writer.copy(file)
        thread.join()
    assert got == [save(model)]


def change(path, how):
    """Changes a file that is being copied, at another time than it was written."""
    time.sleep(0.02)
    if how == "cut":
        os.truncate(path, path.stat().st_size - 4096)
    else:
        with path.open("r+b") as file:
            file.seek(-8 if how == "end" else 4096, os.SEEK_END if how == "end" else os.SEEK_SET)
            file.write(b"changed!")


@pytest.mark.parametrize("how", ["cut", "end", "begin"])
@pytest.mark.parametrize("backend", ["pread", "direct"])
@pytest.mark.parametrize("cast", [False, True])
def test_a_source_that_changes_meanwhile(tmp_path, how, backend, cast):
    """The copy fails, names the source, and leaves the old target and no temporary file."""
    # Not adjacent in the target, so that there are several copies.
    model = {name: np.full((1 << 20) + i, i, "f4") for i, name in enumerate("cba")}
    source = copies.write(tmp_path / "m", model, layout="given")
    save_file({"old": np.ones(1)}, tmp_path / "out")
    before = (tmp_path / "out").read_bytes()
    changes = []

    def progress(done, total):
        if done > 1 << 20 and not changes:
            changes.append(done)
            change(source, how)

    with safe_open(source, "np", backend=backend) as file:
        specs = {
            name: ("F16" if cast else spec.dtype, spec.shape)
            for name, spec in specs_of(file).items()
        }
        with (
            pytest.raises(SafetensorError) as caught,
            safe_create(tmp_path / "out", specs, progress=progress) as writer,
        ):
            writer.copy(file, cast=cast)
    assert changes
    assert caught.value.code == "file_changed"
    assert str(source) in str(caught.value)
    assert (tmp_path / "out").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["m", "out"]

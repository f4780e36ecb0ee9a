"""Targets of a save: links, pipes, folders, open files, files of other users."""

import errno
import io
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

import numpy as np
import pytest

from safetensors import (
    SafetensorError,
    TensorSpec,
    safe_create,
    safe_open,
    serialize_file,
    specs_of,
    update_file,
)
from safetensors.numpy import load, load_file, save, save_file, save_file_async
from support import children
from support.save_failures import refused

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and modes are POSIX's")

OLD = {"a": np.arange(5)}
NEW = {"a": np.arange(1000), "b": np.ones((3, 3), "f4")}


@pytest.fixture
def path(tmp_path):
    """An existing file, alone in a folder."""
    (tmp_path / "folder").mkdir()
    save_file(OLD, tmp_path / "folder" / "one")
    return tmp_path / "folder" / "one"


def mode(path):
    """Returns the permission bits."""
    return stat.S_IMODE(os.stat(path).st_mode)


def names(folder):
    """Returns the names in the folder."""
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("relative", [True, False])
def test_a_symbolic_link_is_followed(path, tmp_path, relative):
    link = tmp_path / "link"
    link.symlink_to("folder/one" if relative else path)
    path.chmod(0o640)
    save_file(NEW, link)
    assert link.is_symlink()
    assert os.readlink(link) == ("folder/one" if relative else os.fspath(path))
    assert not path.is_symlink()
    assert path.read_bytes() == save(NEW)
    assert mode(path) == 0o640
    assert names(tmp_path) == ["folder", "link"]
    assert names(tmp_path / "folder") == ["one"]


@pytest.mark.parametrize("word", ["name", "./name", "folder/../name"])
def test_relative_names(path, tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    save_file(NEW, word)
    assert (tmp_path / "name").read_bytes() == save(NEW)
    assert names(tmp_path) == ["folder", "name"]


def test_a_folder_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    array = np.zeros(4, "f4")
    spec = TensorSpec(dtype="float32", shape=[4], data_ptr=array.ctypes.data, data_len=16)
    (tmp_path / "link").symlink_to(".")
    for target in (tmp_path, tmp_path / "link", f"{tmp_path}/"):
        refused(lambda target=target: save_file(NEW, target), IsADirectoryError, errno.EISDIR)
    refused(lambda: save_torch({"a": torch.zeros(2)}, tmp_path), IsADirectoryError, errno.EISDIR)
    refused(lambda: serialize_file({"a": spec}, tmp_path), IsADirectoryError, errno.EISDIR)
    assert names(tmp_path) == ["link"]


# Pipes.


@pytest.fixture
def cat():
    """Starts processes that copy from a pipe to a file."""
    started = []

    def start(source, target, words=("cat",)):
        with open(target, "wb") as out:
            command = ["sh", "-c", 'exec "$@" < "$0"', os.fspath(source), *words]
            started.append(subprocess.Popen(command, stdout=out))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_pipe_is_written_through(tmp_path, cat):
    large = {**NEW, "c": np.arange(1 << 20)}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        reader = cat(tmp_path / "pipe", tmp_path / "out")
        save_file(large, tmp_path / name)
        assert reader.wait(timeout=60) == 0
        assert (tmp_path / "out").read_bytes() == save(large)
        assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    assert names(tmp_path) == ["link", "out", "pipe"]


def test_a_pipe_whose_reader_leaves_is_an_error(tmp_path, cat):
    os.mkfifo(tmp_path / "pipe")
    reader = cat(tmp_path / "pipe", tmp_path / "out", ("head", "-c", "10"))
    large = {"a": np.zeros(1 << 20)}
    refused(lambda: save_file(large, tmp_path / "pipe"), BrokenPipeError, errno.EPIPE)
    assert reader.wait(timeout=60) == 0
    assert names(tmp_path) == ["out", "pipe"]


WRITERS = {
    "save_file": lambda path: save_file(NEW, path),
    "sums": lambda path: save_file(NEW, path, sums=True),
    "save_file_async": lambda path: save_file_async(NEW, path).result(),
    "safe_create": lambda path: created(path, specs_of(NEW)),
    "safe_create without specs": lambda path: created(path, None),
}


def created(path, specs):
    with safe_create(path, specs) as writer:
        for name, array in NEW.items():
            writer[name] = array


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="looks into /dev/fd")
@pytest.mark.parametrize("write", WRITERS)
def test_an_open_temporary_file_gets_the_bytes(tmp_path, write):
    with tempfile.NamedTemporaryFile(dir=tmp_path, suffix=".safetensors") as held:
        WRITERS[write](held.name)
        data = held.read()
        assert {name: array.tolist() for name, array in load(data).items()} == {
            name: array.tolist() for name, array in NEW.items()
        }
        if "without" not in write:
            assert data == save(NEW)
        assert os.path.samestat(os.fstat(held.fileno()), os.stat(held.name))


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="looks into /dev/fd")
def test_a_failed_save_leaves_an_open_temporary_file_empty(tmp_path):
    def stop(done, total):
        if done:
            raise RuntimeError("stop")

    with tempfile.NamedTemporaryFile(dir=tmp_path) as held:
        with pytest.raises(RuntimeError, match="stop"):
            save_file(NEW, held.name, progress=stop)
        assert held.read() == b""
        assert names(tmp_path) == [os.path.basename(held.name)]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="looks into /dev/fd")
def test_other_open_files_are_replaced(tmp_path):
    """One that is open to read, or has a content, which a failed save would lose."""
    path = tmp_path / "f"
    for mode, content in (("rb", b""), ("r+b", b"old")):
        path.write_bytes(content)
        with open(path, mode) as held:
            save_file(NEW, path)
            assert held.read() == content
        assert path.read_bytes() == save(NEW)


def test_two_saves_to_an_open_temporary_file(tmp_path):
    """Only one writes into it: a lock tells the other, which replaces it."""
    fcntl = pytest.importorskip("fcntl")
    with tempfile.NamedTemporaryFile(dir=tmp_path, delete=False) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        save_file(NEW, held.name)
        assert held.read() == b""
    with open(held.name, "rb") as file:
        assert file.read() == save(NEW)


@pytest.mark.parametrize("target", [io.BytesIO(), 3])
def test_open_files_name_what_takes_them(tmp_path, target):
    text = "expected str, bytes or os.PathLike object, not .*: safe_create.* writes to file objects"
    for write in WRITERS.values():
        if write not in (WRITERS["safe_create"], WRITERS["safe_create without specs"]):
            with pytest.raises(TypeError, match=text):
                write(target)
    with pytest.raises(TypeError, match=r"os.PathLike object, not .*: load\(f.read\(\)\)"):
        safe_open(target, "np")
    with pytest.raises(TypeError, match="not NoneType$"):
        save_file(NEW, None)


# A user who may not do everything.

NOBODY = """
import errno, os, sys
import numpy as np
from support.save_failures import refused
from safetensors.numpy import load, save, save_file
folder = sys.argv[1]
one = os.path.join(folder, "one")
# Whatever is imported on first use: that user may not be able to.
load(save({"a": np.zeros(3)}))["a"][1:]
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
def contents(path):
    with open(path, "rb") as file:
        return file.read()
def listing():
    return sorted(os.listdir(folder))
NEW = {"a": np.arange(1000), "b": np.ones((3, 3), "f4")}
"""


@pytest.fixture
def shared():
    """A folder with a file that other users may enter, unlike pytest's."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="safetensors-test-"))
    try:
        folder.chmod(0o755)
        save_file(OLD, folder / "one")
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def as_nobody(script, folder):
    """Runs the script as a user without files here, or as the current user if that is not root."""
    out = children.run(NOBODY + script, folder)
    assert out.strip() == "done"


def test_a_folder_that_may_not_be_written(shared):
    (shared / "one").chmod(0o444)
    shared.chmod(0o555)
    before = os.stat(shared / "one")
    script = """
for name in ("one", "new"):
    refused(lambda: save_file(NEW, os.path.join(folder, name)), PermissionError, errno.EACCES)
assert listing() == ["one"]
print("done")
"""
    as_nobody(script, shared)
    assert os.stat(shared / "one") == before
    assert load_file(shared / "one")["a"].tolist() == list(range(5))


def test_nothing_is_written_over_where_sums_cannot_be_made(shared):
    file = (shared / "one").rename(shared / "one.safetensors")
    file.chmod(0o666)
    shared.chmod(0o555)
    before = file.read_bytes()
    script = """
path = os.path.join(folder, "one.safetensors")
refused(lambda: save_file(NEW, path, sums=True), PermissionError, errno.EACCES)
assert listing() == ["one.safetensors"]
print("done")
"""
    as_nobody(script, shared)
    assert file.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs two users")
def test_a_sticky_folder_loses_nothing(shared):
    (shared / "one").chmod(0o666)
    shared.chmod(0o1777)
    script = """
before = contents(one)
try:
    save_file(NEW, one)
except PermissionError:
    assert contents(one) == before
else:
    assert contents(one) == save(NEW)
assert listing() == ["one"]
save_file(NEW, os.path.join(folder, "own"))
assert listing() == ["one", "own"]
print("done")
"""
    as_nobody(script, shared)


def snapshot(tmp_path, nbytes=32):
    """Returns two links to one blob, as in the cache of the Hub, and the blob."""
    blob = tmp_path / "blobs" / ("0f" * nbytes)
    blob.parent.mkdir()
    save_file(OLD, blob)
    links = [tmp_path / "snapshots" / name / "model.safetensors" for name in ("one", "two")]
    for link in links:
        link.parent.mkdir(parents=True)
        link.symlink_to(f"../../blobs/{blob.name}")
    return *links, blob


@pytest.mark.parametrize("nbytes", [20, 32])
def test_a_link_to_a_blob_of_the_hub_is_replaced(tmp_path, nbytes):
    """The blob, which other revisions share, keeps the bytes that its name is the digest of."""
    link, other, blob = snapshot(tmp_path, nbytes)
    blob.chmod(0o640)
    (tmp_path / "mine").symlink_to(link)
    for name, tensors in ((link, NEW), (tmp_path / "mine", OLD)):
        save_file(tensors, name, {"of": "this save"})
        assert blob.read_bytes() == other.read_bytes() == save(OLD)
        assert not link.is_symlink()
        assert link.read_bytes() == save(tensors, {"of": "this save"})
        assert mode(link) == 0o640
        assert names(link.parent) == ["model.safetensors"]
        link.unlink()
        link.symlink_to(f"../../blobs/{blob.name}")
    assert (tmp_path / "mine").is_symlink()
    blob.unlink()
    save_file(NEW, link)
    assert link.read_bytes() == save(NEW)
    assert names(blob.parent) == []


def test_other_changes_of_a_file_of_the_hub(tmp_path):
    """An update replaces the link, too. A change in place is refused."""
    link, other, blob = snapshot(tmp_path)
    with pytest.raises(SafetensorError, match="not changed in place: it is a symbolic link"):
        update_file(link, {"a": OLD["a"] + 1}, in_place=True)
    update_file(link, {"b": NEW["b"]}, add=True)
    assert not link.is_symlink()
    assert blob.read_bytes() == other.read_bytes() == save(OLD)


@pytest.mark.parametrize("name", ["0f" * 31, "0F" * 32, "0g" * 32, "model"])
def test_other_links_into_a_folder_named_blobs_are_followed(path, tmp_path, name):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "link").symlink_to(f"blobs/{name}")
    save_file(NEW, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "blobs" / name).read_bytes() == save(NEW)

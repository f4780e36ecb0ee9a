"""Targets of a save: links, modes, pipes, devices, folders, files of other users."""

import errno
import io
import os
import pathlib
import shutil
import stat
import subprocess
import sys
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
from support import children, file_builder
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


@pytest.fixture
def umask():
    """Sets the umask for the length of a test."""
    was = os.umask(0o022)
    yield os.umask
    os.umask(was)


def mode(path):
    """Returns the permission bits."""
    return stat.S_IMODE(os.stat(path).st_mode)


def names(folder):
    """Returns the names in the folder."""
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077, 0o002, 0])
def test_a_new_file_follows_the_umask(tmp_path, umask, mask):
    umask(mask)
    save_file(NEW, tmp_path / "new")
    assert mode(tmp_path / "new") == 0o666 & ~mask


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o755, 0o666, 0o444])
def test_a_replaced_file_keeps_its_mode(path, umask, bits):
    umask(0o027)
    path.chmod(bits)
    save_file(NEW, path)
    assert mode(path) == bits
    assert path.read_bytes() == save(NEW)


def test_a_file_is_replaced_not_written_over(path):
    with open(path, "rb") as held:
        save_file(NEW, path)
        assert held.read() == save(OLD)
    assert path.read_bytes() == save(NEW)


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


def test_a_chain_of_links_is_followed(path, tmp_path):
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / "second").symlink_to("../folder/one")
    (tmp_path / "first").symlink_to("further/second")
    (tmp_path / "door").symlink_to("folder")
    for name in ("first", "door/one"):
        save_file(OLD, path)
        save_file(NEW, tmp_path / name)
        assert path.read_bytes() == save(NEW)
    assert names(tmp_path) == ["door", "first", "folder", "further"]
    assert names(tmp_path / "folder") == ["one"]
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "further" / "second").is_symlink()


def test_a_dangling_link_creates_what_it_names(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("folder/none")
    save_file(NEW, link)
    assert link.is_symlink()
    assert (tmp_path / "folder" / "none").read_bytes() == save(NEW)
    assert names(tmp_path / "folder") == ["none", "one"]
    (tmp_path / "lost").symlink_to("no such folder/none")
    refused(lambda: save_file(NEW, tmp_path / "lost"), FileNotFoundError, errno.ENOENT)
    assert (tmp_path / "lost").is_symlink()


def test_a_loop_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(lambda: save_file(NEW, tmp_path / "a"), OSError, errno.ELOOP)
    assert names(tmp_path) == ["a", "b"]


def test_the_other_name_of_a_hard_link_keeps_the_old_content(path, tmp_path):
    os.link(path, tmp_path / "other")
    save_file(NEW, path)
    assert (tmp_path / "other").read_bytes() == save(OLD)
    assert path.read_bytes() == save(NEW)


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


# Pipes and devices.


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


def write_by_spec(tensors, path):
    """Saves the arrays with serialize_file."""
    words = {"<i8": "int64", "<f4": "float32"}
    specs = {
        name: TensorSpec(
            dtype=words[value.dtype.str],
            shape=value.shape,
            data_ptr=value.ctypes.data,
            data_len=value.nbytes,
        )
        for name, value in tensors.items()
    }
    serialize_file(specs, path)


def write_torch(tensors, path):
    """Saves the arrays with safetensors.torch.save_file."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    save_torch({name: torch.from_numpy(value) for name, value in tensors.items()}, path)


@pytest.mark.parametrize("write", [save_file, write_torch, write_by_spec])
def test_a_pipe_is_written_through(tmp_path, cat, write):
    large = {**NEW, "c": np.arange(1 << 20)}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        reader = cat(tmp_path / "pipe", tmp_path / "out")
        write(large, tmp_path / name)
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


def device(folder, name, minor):
    """A memory device; root gets a new one, because a bug would replace it."""
    if os.getuid() != 0:
        return pathlib.Path("/dev") / name
    try:
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.close(os.open(folder / name, os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    return folder / name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="numbers of Linux devices")
def test_devices_are_written_to(tmp_path):
    null = device(tmp_path, "null", 3)
    save_file(NEW, null)
    save_file(NEW, null, fsync=True)
    assert stat.S_ISCHR(os.stat(null).st_mode)
    full = device(tmp_path, "full", 7)
    refused(lambda: save_file(NEW, full), OSError, errno.ENOSPC)
    assert stat.S_ISCHR(os.stat(full).st_mode)
    assert set(names(tmp_path)) <= {"full", "null"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_descriptor_path_is_written_to(tmp_path):
    read, write = os.pipe()
    try:
        save_file(OLD, f"/proc/self/fd/{write}")
        assert os.read(read, 1 << 16) == save(OLD)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("prefix", ["/proc/self/fd", "/dev/fd"])
def test_the_file_of_a_descriptor_gets_the_bytes(tmp_path, prefix):
    """Whoever holds it finds them there, also if the file had another content."""
    for content in (b"", b"x" * 5000):
        with open(tmp_path / "f", "w+b") as held:
            held.write(content)
            held.flush()
            save_file(NEW, f"{prefix}/{held.fileno()}")
            held.seek(0)
            assert held.read() == save(NEW)
        assert names(tmp_path) == ["f"]


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
import errno, importlib, os, sys
import numpy as np
from support.save_failures import refused
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file
folder, word = sys.argv[1:]
one = os.path.join(folder, "one")
framework = importlib.import_module(word)
module = importlib.import_module("safetensors." + word)
# Whatever is imported on first use: that user may not be able to.
module.load(module.save({"a": framework.zeros(3)}))["a"][1:]
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


def as_nobody(script, folder, module="numpy"):
    """Runs the script as a user without files here, or as the current user if that is not root."""
    out = children.run(NOBODY + script, folder, module)
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


def test_a_folder_that_may_not_be_entered(shared):
    shared.chmod(0o000)
    script = """
refused(lambda: save_file(NEW, one), PermissionError, errno.EACCES)
print("done")
"""
    as_nobody(script, shared)
    shared.chmod(0o755)
    assert load_file(shared / "one")["a"].tolist() == list(range(5))
    assert names(shared) == ["one"]


def test_a_writable_file_in_a_read_only_folder_is_written_over(shared):
    (shared / "one").chmod(0o666)
    shared.chmod(0o555)
    inode = os.stat(shared / "one").st_ino
    script = """
for tensors in (NEW, {"a": np.arange(3)}, NEW):
    save_file(tensors, one)
    assert contents(one) == save(tensors)
    assert listing() == ["one"]
print("done")
"""
    as_nobody(script, shared)
    assert os.stat(shared / "one").st_ino == inode
    assert mode(shared / "one") == 0o666
    assert (shared / "one").read_bytes() == save(NEW)


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


@pytest.mark.slow
@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_writing_over_the_file_the_tensors_come_from(shared, module):
    tensors = {f"t{i}": np.full(3_000_000, i, "f4") for i in range(3)}
    file_builder.write(shared / "one", tensors)
    (shared / "one").chmod(0o666)
    shared.chmod(0o555)
    script = """
load, write = module.load_file, module.save_file
extra = framework.zeros(12345, dtype=framework.float64)
held = load(one)
count = len(held["t0"])
view = held["t2"][1000:2000]
write({**held, "extra": extra}, one)
found = load(one)
assert sorted(found) == ["extra", "t0", "t1", "t2"]
for i in range(3):
    tensor = found[f"t{i}"]
    assert float(tensor.min()) == float(tensor.max()) == i and len(tensor) == count == 3_000_000
# Fewer bytes than before: what is saved may not be cut off before it is read.
with safe_open(one, {"numpy": "np", "torch": "pt"}[word]) as file:
    write({"last": file.get_slice("t2")[100:200], "first": file.get_tensor("t1")[:50]}, one)
found = load(one)
assert float(found["last"].min()) == 2 and len(found["last"]) == 100
assert float(found["first"].max()) == 1 and len(found["first"]) == 50
assert listing() == ["one"]
print("done")
"""
    as_nobody(script, shared, module)


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

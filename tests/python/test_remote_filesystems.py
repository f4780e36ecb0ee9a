"""File systems of fsspec: those that are read, and those that are refused."""

import builtins
import os
import time

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from safetensors import SafetensorError
from safetensors._model_folder import Choice
from safetensors._remote import filesystems
from safetensors._remote.open import find_shards, open_reader
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.threads import together

CONTENT = bytes(range(256)) * 64
CANARY = "CANARY1234567890"


@pytest.fixture(autouse=True)
def memory():
    """The memory file system with a few files, empty again afterwards."""
    fs = fsspec.filesystem("memory")
    fs.pipe("/models/m.safetensors", CONTENT)
    fs.pipe("/models/n.safetensors", CONTENT)
    fs.pipe("/models/deeper/o.safetensors", CONTENT)
    fs.pipe("/empty.safetensors", b"")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


class Failing(MemoryFileSystem):
    """Raises, or gives, what a test wants."""

    cachable = False
    error = None
    info_of = None
    content = None

    def info(self, path, **kwargs):
        """Returns the test's."""
        if self.error:
            raise self.error
        return self.info_of or super().info(path, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        """Returns the test's."""
        return super().cat_file(path, start, end) if self.content is None else self.content


@pytest.fixture
def failing(monkeypatch):
    """The class that memory:// now has; a test sets its attributes."""
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: Failing)
    for name in ("error", "info_of", "content"):
        monkeypatch.setattr(Failing, name, None)
    return lambda name, value: monkeypatch.setattr(Failing, name, value)


def read(url="memory://models/m.safetensors", **options):
    """Returns a reader."""
    return filesystems.reader(Url.parse(url), Settings.of(options, filesystems.OPTIONS))


class Strict(MemoryFileSystem):
    """Takes the arguments that it knows and no others, as clients of sftp and webdav do."""

    cachable = False
    got = None

    def __init__(self, *, token, timeout=None):
        """Keeps the arguments."""
        super().__init__()
        Strict.got = {"token": token, "timeout": timeout}


def test_size_first_bytes_and_parts():
    opened = read()
    size, first = opened.open(100)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT[:100])
    assert bytes(opened.read(1000, 24)) == CONTENT[1000:1024]
    assert bytes(opened.read(size - 3, 3)) == CONTENT[-3:]
    assert opened.open(10**9)[1] == CONTENT
    assert opened.concurrency == 8
    assert read("memory://empty.safetensors").open(10) == (0, b"")


def test_it_is_an_engine_of_urls():
    assert open_reader("memory://models/m.safetensors").open(4)[1] == CONTENT[:4]
    (shard,) = find_shards("memory://models", choice=Choice("n"))
    assert shard.name == "memory://models/n.safetensors"
    assert shard.open().open(4)[0] == len(CONTENT)
    with pytest.raises(SafetensorError, match=r"several models: .* \(in memory://models/\)"):
        find_shards("memory://models")


def test_the_class_gets_what_the_user_passed(monkeypatch):
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: Strict)
    opened = read(token=CANARY, timeout=7, concurrency=2, chunk_bytes=5, gap_bytes=6)
    assert Strict.got == {"token": CANARY, "timeout": 7}
    assert (opened.concurrency, opened.chunk_bytes, opened.gap_bytes) == (2, 5, 6)
    assert opened.open(4)[1] == CONTENT[:4]
    assert opened._fs.dircache.use_listings_cache is False
    with pytest.raises(SafetensorError, match="unexpected keyword argument 'tries'"):
        read(token=CANARY, tries=2)


def test_dbfs_gets_its_token():
    pytest.importorskip("requests")
    options = {"instance": "127.0.0.1:1", "token": CANARY}
    opened = read("dbfs:///folder/m.safetensors", **options)
    assert (opened._fs.instance, opened._path) == ("127.0.0.1:1", "/folder/m.safetensors")
    assert opened._fs.session.headers["Authorization"] == f"Bearer {CANARY}"
    assert CANARY not in repr(opened)


def test_a_listing_has_no_folders():
    settings = Settings.of()
    names = filesystems.listing(Url.parse("memory://models"), settings)
    assert names == ["m.safetensors", "n.safetensors"]
    assert filesystems.listing(Url.parse("memory://nothing"), settings) == []


def test_a_change_is_noticed(memory):
    opened = read()
    opened.open(10)
    time.sleep(0.01)
    memory.pipe("/models/m.safetensors", CONTENT[::-1])
    with pytest.raises(SafetensorError, match="changed while it was being read") as raised:
        opened.read(0, 10)
    assert raised.value.code == "file_changed"
    memory.rm("/models/m.safetensors")
    with pytest.raises(FileNotFoundError):
        opened.read(0, 10)


def test_a_file_that_gets_shorter(failing):
    opened = read()
    opened.open(10)
    failing("content", b"short")
    with pytest.raises(SafetensorError, match="gave 5 bytes instead of 10"):
        opened.read(0, 10)


@pytest.mark.parametrize("size", [None, -1, "9"])
def test_a_file_without_a_size(failing, size):
    failing("info_of", {"name": "x", "size": size, "type": "file"})
    with pytest.raises(SafetensorError, match="has no size"):
        read().open(10)


def test_a_folder():
    with pytest.raises(SafetensorError, match="is a folder"):
        read("memory://models").open(10)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), FileNotFoundError),
        (PermissionError("x"), PermissionError),
        (TimeoutError("x"), TimeoutError),
        (ConnectionResetError("x"), ConnectionError),
        (EOFError("x"), ConnectionError),
        (ValueError("x"), SafetensorError),
    ],
)
def test_errors_are_the_tables(failing, error, kind):
    error.args = (f"ftp://user:{CANARY}@host/x?token={CANARY}\n{CANARY}",)
    failing("error", error)
    with pytest.raises(kind, match="memory://models/m.safetensors") as raised:
        read().open(10)
    assert isinstance(raised.value, SafetensorError)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert CANARY not in f"{raised.value!r} {vars(raised.value)}"


@pytest.mark.parametrize(
    "options",
    [{"token": CANARY}, {"auth": ("user", CANARY)}, {"deep": [{"key": CANARY, "n": 5}]}],
    ids=repr,
)
def test_errors_show_no_option(failing, options):
    opened = read(**options)
    failing("error", ValueError(f"wrong signature of {CANARY}, 5 bytes"))
    with pytest.raises(SafetensorError, match=r"wrong signature of \.\.\., 5 bytes") as raised:
        opened.open(10)
    assert CANARY not in f"{raised.value!r} {vars(raised.value)}"


@pytest.mark.parametrize(
    "url",
    [
        "zip://m.safetensors",
        "git://path/m.safetensors",
        "dir://models/m.safetensors",
        "generic://models/m.safetensors",
        "simplecache://models/m.safetensors",
        "github://org:repo/m.safetensors",
        "unheard-of://models/m.safetensors",
    ],
)
def test_protocols_that_are_not_listed(url):
    with pytest.raises(ImportError, match="is not a protocol that safetensors reads"):
        read(url)


def test_fsspec_knows_the_protocols():
    assert set(fsspec.available_protocols()) >= filesystems.PROTOCOLS


@pytest.mark.parametrize("scheme", ["file", "local", "reference"])
def test_protocols_of_local_files(scheme):
    with pytest.raises(SafetensorError, match=f"{scheme}://"):
        open_reader(f"{scheme}:///etc/hostname")


@pytest.mark.parametrize(
    "url",
    [
        "memory://models::file:///etc/hostname",
        "memory://models/m.safetensors::memory://x",
        "simplecache::memory://models/m.safetensors",
    ],
)
def test_chains_are_refused(url):
    with pytest.raises(SafetensorError, match="chains of protocols"):
        read(url)


def test_the_package_to_install_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] in ("fsspec", "paramiko"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(filesystems.importlib, "import_module", without)
    with pytest.raises(ImportError, match=r"pip install fsspec"):
        read()


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "ssh"])
def test_some_run_one_command_at_a_time(scheme, failing, monkeypatch):
    monkeypatch.setattr(
        Failing, "_strip_protocol", staticmethod(lambda path: "/models/m.safetensors")
    )
    at_once = []

    def cat(self, path, start=None, end=None, **kwargs):
        at_once.append(1)
        assert len(at_once) == 1
        time.sleep(0.02)
        at_once.clear()
        return CONTENT[start:end]

    monkeypatch.setattr(Failing, "cat_file", cat)
    opened = read(f"{scheme}://host/models/m.safetensors")
    assert opened.concurrency == 1
    opened.open(1)
    assert together(lambda _: opened.read(5, 2), range(8)) == [CONTENT[5:7]] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_opens_it_again(monkeypatch):
    opened = read()
    opened.open(1)
    monkeypatch.setattr(filesystems.os, "getpid", lambda: -1)
    with pytest.raises(SafetensorError, match="open it again"):
        opened.read(0, 1)

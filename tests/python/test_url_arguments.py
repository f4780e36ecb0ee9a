"""URLs and RangeReaders where functions take paths: who takes them, who refuses them.

A fake of `safetensors._remote.open` stands for the engines.
"""

import json
import os
import sys
import threading
import types
from typing import NamedTuple

import numpy as np
import pytest

import safetensors.numpy
from safetensors import SafetensorError, _core, _extra, delta, safe_open
from safetensors._open_shards import open_tensors
from safetensors._shards import find_shards
from safetensors.numpy import save, save_file
from support import children
from support.range_readers import MemoryReader

ONE = {"a": np.arange(6, dtype="<f4").reshape(2, 3)}
TWO = {"b": np.arange(300_000, dtype="<i4")}
INDEX = "s3://bucket/model.safetensors.index.json"


class RemoteShard(NamedTuple):
    name: str
    open: object
    names: object = None
    index_name: str = ""
    total_size: object = None
    url: str = ""
    folder: str = ""


class Missing(MemoryReader):
    def open(self, nbytes):
        error = _core._error_class(FileNotFoundError)(f"{self.name}: does not exist")
        error.code = "io"
        raise error


class Store:
    """Objects by URL, and the readers that were made of them."""

    def __init__(self, objects):
        self.objects = objects
        self.readers = []
        self.options = []

    def open_reader(self, url, storage_options=None):
        self.options.append(storage_options)
        made = MemoryReader(self.objects[url], url) if url in self.objects else Missing(b"", url)
        self.readers.append(made)
        return made

    def find_shards(self, url, storage_options=None, choice=None):
        if not url.endswith(".json"):
            return [RemoteShard(url, lambda: self.open_reader(url, storage_options))]
        by_file, total = _extra._parse_index(self.objects[url], url)
        folder = url.rpartition("/")[0]
        return [
            self._shard(f"{folder}/{file}", *rest, url, total) for file, *rest in by_file.items()
        ]

    def _shard(self, url, names, index, total):
        return RemoteShard(url, lambda: self.open_reader(url), names, index, total)


@pytest.fixture
def store(monkeypatch):
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    made = Store(
        {
            "s3://bucket/one.safetensors": save(ONE, {"k": "v"}),
            "s3://bucket/two.safetensors": save(TWO),
            "s3://bucket/cut.safetensors": save(ONE)[:-1],
            "s3://bucket/page.safetensors": b"<!DOCTYPE html><html>" + bytes(100),
            INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
        }
    )
    package = types.ModuleType("safetensors._remote")
    package.open = module = types.ModuleType("safetensors._remote.open")
    module.open_reader, module.find_shards = made.open_reader, made.find_shards
    module.open_url = made.open_reader
    module.find_cached = lambda url, storage_options=None: None
    monkeypatch.setitem(sys.modules, "safetensors._remote", package)
    monkeypatch.setitem(sys.modules, "safetensors._remote.open", module)
    return made


URL = "s3://bucket/one.safetensors"


def test_safe_open_passes_the_url_and_options(store):
    options = {"retries": 1}
    with safe_open(URL, "np", storage_options=options) as file:
        np.testing.assert_array_equal(file.get_tensor("a"), ONE["a"])
        assert repr(file) == f"<safe_open path='{URL}' framework='numpy' tensors=1>"
    assert store.options == [options]
    assert store.readers[0].closes == 1


def test_errors_of_opening_are_raised_as_they_are(store):
    with pytest.raises(FileNotFoundError, match="does not exist") as caught:
        safe_open("s3://bucket/none", "np")
    assert isinstance(caught.value, SafetensorError)


@pytest.mark.parametrize("name", ["numpy", "torch", "flax", "tensorflow", "mlx", "paddle"])
def test_load_file(store, name):
    pytest.importorskip({"flax": "jax", "mlx": "mlx.core"}.get(name, name))
    module = __import__(f"safetensors.{name}", fromlist=["load_file"])
    for source in (URL, MemoryReader(save(ONE))):
        found = module.load_file(source)
        np.testing.assert_array_equal(np.asarray(found["a"]), ONE["a"])
    module.load_file(URL, storage_options={"x": 1})
    assert store.options[-1] == {"x": 1}
    with pytest.raises(TypeError, match="storage_options"):
        module.load_file("local.safetensors", storage_options={"x": 1})


def opened(sources, wanted=None, **options):
    import contextlib

    with contextlib.ExitStack() as stack:
        handles, unwanted = open_tensors(find_shards(sources, **options), wanted, "auto", stack)
        return {name: np.asarray(file.get_tensor(name)) for name, file in handles.items()}, unwanted


def test_find_shards_takes_urls_readers_and_paths(store, tmp_path):
    pytest.importorskip("torch")
    local = tmp_path / "local.safetensors"
    save_file({"l": np.arange(2)}, local)
    found, _ = opened([URL, MemoryReader(save(TWO)), local], storage_options={"x": 1})
    assert list(found) == ["a", "b", "l"]
    assert store.options == [{"x": 1}]
    found, _ = opened(MemoryReader(save(TWO)))
    assert list(found) == ["b"]
    with pytest.raises(TypeError, match="storage_options"):
        find_shards(local, {"x": 1})


def test_an_index_behind_a_url(store):
    pytest.importorskip("torch")
    found, unwanted = opened(INDEX)
    assert (list(found), unwanted) == (["a", "b"], [])
    assert len(store.readers) == 2
    found, unwanted = opened(INDEX, {"b"})
    assert (list(found), unwanted) == (["b"], ["a"])
    assert len(store.readers) == 3  # the file without a wanted tensor is not opened
    assert all(reader.closes == 1 for reader in store.readers)


def test_errors_in_shards_of_an_index(store):
    pytest.importorskip("torch")
    whole = store.objects.pop("s3://bucket/two.safetensors")
    with pytest.raises(FileNotFoundError, match=r"index .* puts tensor 'b' into a file") as caught:
        opened(INDEX)
    assert isinstance(caught.value, SafetensorError)
    assert all(reader.closes == 1 for reader in store.readers)
    store.objects["s3://bucket/two.safetensors"] = save({"c": np.arange(3)})
    with pytest.raises(SafetensorError, match="puts tensor 'b' into"):
        opened(INDEX)
    store.objects["s3://bucket/two.safetensors"] = whole[:-1]
    with pytest.raises(SafetensorError, match=r"s3://bucket/two.safetensors"):
        opened(INDEX)
    assert all(reader.closes == 1 for reader in store.readers)


def test_headers_are_opened_sixteen_at_a_time():
    pytest.importorskip("torch")
    at_once = most = 0
    changed = threading.Condition()

    class Counting(MemoryReader):
        def open(self, nbytes):
            nonlocal at_once, most
            with changed:
                at_once += 1
                most = max(most, at_once)
                changed.notify_all()
                changed.wait_for(lambda: most == 16, timeout=10)
            try:
                return super().open(nbytes)
            finally:
                with changed:
                    at_once -= 1

    readers = [Counting(save({f"t{i}": np.arange(3)})) for i in range(40)]
    found, _ = opened(readers)
    assert list(found) == [f"t{i}" for i in range(40)]
    assert most == 16
    assert all(reader.closes == 1 for reader in readers)


def test_a_local_path_that_looks_like_a_url(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    os.makedirs("s3:/")
    save_file(ONE, b"s3://m.safetensors")
    for path in (b"s3://m.safetensors", os.fsencode(tmp_path) + b"/s3://m.safetensors"):
        assert list(opened(path)[0]) == ["a"]


def test_a_path_imports_nothing_of_remote(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(ONE, path)
    script = """
        import sys
        from safetensors import safe_open
        from safetensors.numpy import load_file
        load_file(sys.argv[1])
        with safe_open(sys.argv[1], "np") as file:
            file.get_tensors()
        print([name for name in sys.modules if "_remote" in name or "_range_reader" in name])
    """
    assert children.run(script, path) == "[]\n"


@pytest.mark.parametrize("backend", ["auto", "pread"])
def test_load_files(store, tmp_path, backend):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_files

    seen = []
    found = load_files(INDEX, backend=backend, progress=lambda *pair: seen.append(pair))
    assert list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["b"].numpy(), TWO["b"])
    assert seen[-1] == (24 + 1_200_000,) * 2
    local = tmp_path / "l.safetensors"
    save_file({"l": np.arange(3)}, local)
    found = load_files([local, URL, MemoryReader(save(TWO))], storage_options={"x": 1})
    assert list(found) == ["l", "a", "b"]
    assert store.options[-1] == {"x": 1}
    found = load_files(INDEX, plan={"b": slice(5, 9)})
    assert torch.equal(found["b"], torch.arange(5, 9, dtype=torch.int32))
    with pytest.raises(SafetensorError, match="backend"):
        load_files(URL, backend="nope")


def test_stream_files_and_load_into(store):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_into, stream_files

    streamed = dict(stream_files(INDEX, storage_options={}))
    np.testing.assert_array_equal(streamed["b"].numpy(), TWO["b"])
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(300_000, dtype=torch.int32)}
    assert load_into(state, INDEX, storage_options={}) == ([], [])
    np.testing.assert_array_equal(state["b"].numpy(), TWO["b"])
    assert load_into(state, MemoryReader(save(ONE)), strict=False) == (["b"], [])


# Saving ---------------------------------------------------------------------


def savers():
    yield "numpy.save_file", lambda url: safetensors.numpy.save_file(ONE, url)
    yield "numpy.save_files", lambda url: safetensors.numpy.save_files(ONE, url)
    yield "serialize_file", lambda url: safetensors.serialize_file({}, url)
    yield "safe_create", lambda url: safetensors.safe_create(url, {"x": ("F32", [1])})
    yield "update_file", lambda url: safetensors.update_file(url, {})
    yield "delta.diff", lambda url: delta.diff(ONE, ONE, url)
    yield "delta.apply_file", lambda url: delta.apply_file("model", "patch", url)


@pytest.mark.parametrize(("name", "save_to"), list(savers()))
def test_saving_to_a_url_is_refused(name, save_to, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SafetensorError) as caught:
        save_to("https://user:secret@host/path?key=secret")
    assert str(caught.value) == "saving to a URL is not possible: https://..."
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["save_file", "save_files", "save_model", "save_file_async"])
def test_torch_refuses_to_save_to_a_url(name):
    torch = pytest.importorskip("torch")
    import safetensors.torch

    tensors = torch.nn.Linear(1, 1) if name == "save_model" else {"x": torch.zeros(1)}
    with pytest.raises(SafetensorError, match="saving to a URL is not possible: s3://"):
        getattr(safetensors.torch, name)(tensors, "s3://bucket/x")


def test_weights_refuse_urls():
    weights = pytest.importorskip("safetensors.weights")
    with pytest.raises(weights.WeightsError, match=r"by a URL is not possible: s3://\.\.\.$"):
        weights.open_weights("s3://bucket/model.gguf?secret")


# Command line ---------------------------------------------------------------


@pytest.fixture
def run(store, capsys):
    from safetensors._cli.main import main

    def call(*words):
        status = main(list(words))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_ls_show_meta_hash_diff(run, store, tmp_path):
    local = tmp_path / "one.safetensors"
    save_file(ONE, local, {"k": "v"})
    status, out, _ = run("ls", URL)
    assert status == 0
    assert "F32" in out
    assert len(store.readers) == store.readers[0].requests == 1
    status, out, _ = run("ls", "--json", INDEX)
    assert status == 0
    assert "one.safetensors" in out
    assert run("meta", URL, "k") == (0, "v\n", "")
    assert run("hash", "--whole", URL)[1] == run("hash", "--whole", str(local))[1]
    assert run("diff", URL, str(local))[0] == 0
    assert run("diff", INDEX, URL)[0] == 1
    status, out, _ = run("show", INDEX, "b")
    assert status == 0
    assert "299999" in out.replace(",", "")
    assert all(reader.closes == 1 for reader in store.readers)


def test_check(run, store):
    status, out, _ = run("check", "--read", URL, INDEX)
    assert (status, out.count("ok")) == (0, 5), out
    status, out, _ = run("check", "s3://bucket/cut.safetensors")
    assert status == 1
    assert "truncated" in out
    status, out, _ = run("check", "s3://bucket/page.safetensors")
    assert status == 1
    assert "html" in out.lower()
    status, out, _ = run("check", "s3://bucket/none")
    assert status == 2
    assert "does not exist" in out
    index = json.loads(store.objects[INDEX])
    index["metadata"]["total_size"] = 7
    index["weight_map"]["c"] = "one.safetensors"
    store.objects[INDEX] = json.dumps(index).encode()
    status, out, _ = run("check", INDEX)
    assert status == 1
    assert f"{INDEX}: index: tensor `c` is not in one.safetensors\n" in out
    assert "`total_size` is 7, but the tensors have 1,200,024 bytes" in out
    store.objects[INDEX] = b'{"weight_map": {}}'
    status, out, _ = run("check", INDEX)
    assert status == 1
    assert out.endswith("not an index of shards: it names no tensor\n")
    assert run("ls", INDEX)[0] == 2


def test_check_of_a_missing_shard(run, store):
    store.objects.pop("s3://bucket/two.safetensors")
    status, out, _ = run("check", INDEX)
    assert status == 1
    assert "missing" in out


def test_a_shard_that_cannot_be_opened_closes_the_others(run, store):
    weight_map = {f"a{i}": f"{i}.safetensors" for i in range(1, 40)}
    store.objects[INDEX] = json.dumps(
        {"weight_map": {**weight_map, "x": "00.safetensors"}}
    ).encode()
    for i in range(1, 40):
        store.objects[f"s3://bucket/{i}.safetensors"] = save(ONE)
    status, _, err = run("ls", INDEX)
    assert status == 2
    assert "00.safetensors: does not exist" in err
    opened = [reader for reader in store.readers if reader.opens]
    assert opened
    assert [reader.closes for reader in opened] == [1] * len(opened)


@pytest.mark.parametrize("place", ["find_shards", "open_reader"])
def test_the_package_to_install_is_named(run, store, place, monkeypatch, tmp_path):
    def missing(*_):
        raise ImportError("s3:// needs obstore, which is not installed")

    # In real engines it is known when the scheme is, or when a file is opened.
    monkeypatch.setattr(store, "open_reader", missing)
    if place == "find_shards":
        monkeypatch.setattr(sys.modules["safetensors._remote.open"], "find_shards", missing)
    said = "s3:// needs obstore, which is not installed\n"
    assert run("ls", URL) == (2, "", f"safetensors: {said}")
    save_file(ONE, tmp_path / "m.safetensors")
    status, out, _ = run("check", URL, str(tmp_path / "m.safetensors"))
    assert (status, out.splitlines(True)[0]) == (2, f"{URL}: unreadable: {said}")
    assert "ok: 1 tensor" in out


@pytest.mark.parametrize(
    "words",
    [
        ("meta", "--set", "a=b", "s3://b/x?secret"),
        ("convert", "s3://b/x?secret", "target"),
        ("convert", "source", "s3://b/x?secret"),
        ("merge", "a", "s3://b/x?secret", "target"),
        ("shard", "s3://b/x?secret", "target"),
        ("extract", "s3://b/x?secret", "target"),
        ("rename", "s3://b/x?secret", "--prefix", "a=b"),
        ("recover", "s3://b/x?secret"),
    ],
)
def test_commands_that_write_refuse_urls(run, words):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert "URL" in err
    assert "secret" not in err

"""Servers without ranges: whole files are read once, in order. And bodies without a length."""

import concurrent.futures
import contextlib
import functools
import http.server
import itertools
import json
import re
import threading
import time

import pytest

import safetensors.numpy
from safetensors import SafetensorError, safe_open
from safetensors._remote import in_order, probes
from safetensors._remote.http import HttpReader
from safetensors._remote.open import find_shards
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from safetensors.torch import load_file, load_files, load_into, save_files, stream_files
from support import sharded
from support.misbehaving import MisbehavingServer
from support.servers import RangeServer
from support.whole_bodies import MODES

torch = pytest.importorskip("torch", reason="torch is not installed")

MIB = 1 << 20
KIB = 1 << 10
FAST = {"tries": 3, "connect_timeout": 2, "idle_timeout": 5, "timeout": 30, "chunk_bytes": MIB}
TENSORS = {f"t{i:02}": torch.randn(300, 1000) for i in range(10)}
NO_RANGES = (
    "the server sends no ranges of it, only the whole, in order: load the tensors by one call"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tensors in four files, and in one."""
    path = tmp_path_factory.mktemp("model")
    save_files(TENSORS, path / "several", max_shard_size=4_000_000)
    save_files(TENSORS, path / "one")
    return path


@pytest.fixture
def server(folder):
    """Serves the folder without ranges."""
    files = {f"/{file.relative_to(folder)}": file.read_bytes() for file in folder.rglob("*.*")}
    with MisbehavingServer("ignores_ranges", files) as server:
        yield server


def times_asked(server):
    """Returns how often each file was asked for, without those of an index and of absent files."""
    asked = [request.path for request in server.log if request.path in server.files]
    return {path: asked.count(path) for path in asked if path.endswith(".safetensors")}


LOADS = {
    "load_file": lambda url: load_file(url + "one/model.safetensors", storage_options=FAST),
    "numpy": lambda url: safetensors.numpy.load_file(
        url + "one/model.safetensors", storage_options=FAST
    ),
    "load_files": lambda url: load_files(url + "several/", storage_options=FAST),
    "stream_files": lambda url: dict(
        stream_files(url + "several/", storage_options=FAST, budget_bytes=3_000_000)
    ),
    "load_into": lambda url: into(url + "several/"),
}


def into(url):
    """Returns tensors that were loaded into memory that was there."""
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load_into(targets, url, storage_options=FAST)
    return targets


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_whole_files(server, load):
    """One request opens a file, and one reads it."""
    loaded = load(server.url("/"))
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(torch.as_tensor(loaded[name]), TENSORS[name]) for name in TENSORS)
    assert set(times_asked(server).values()) == {2}


def test_python_s_own_server(folder):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            """Prints nothing."""

    handler = functools.partial(Handler, directory=folder)
    # Answers one connection at a time: none may stay open while others wait.
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *args: None
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/several/model.safetensors.index.json"
            assert sharded.same(load_files(url, storage_options=FAST)["t03"], TENSORS["t03"])
        finally:
            server.shutdown()
            thread.join()


KEYS = ["t09", "t02", "t05"]
PARTS = {
    "keys": lambda url: load_files(url, keys=KEYS, storage_options=FAST),
    "plan": lambda url: load_files(url, plan=dict.fromkeys(KEYS), storage_options=FAST),
    "stream_files": lambda url: dict(stream_files(url, keys=KEYS, storage_options=FAST)),
    "load_into": lambda url: some_into(url),
    "safe_open": lambda url: opened(url),
}


def some_into(url):
    targets = {name: torch.zeros_like(TENSORS[name]) for name in KEYS}
    load_into(targets, url, strict=False, storage_options=FAST)
    return targets


def opened(url):
    """Returns tensors that are read one by one, in the order of the file."""
    with safe_open(url, "pt", storage_options=FAST) as f:
        return {name: f.get_tensor(name) for name in f.offset_keys() if name in KEYS}


@pytest.mark.parametrize("load", PARTS.values(), ids=PARTS)
def test_some_tensors(server, load):
    """The others are skipped, in the one answer that has them all."""
    loaded = load(server.url("/one/model.safetensors"))
    assert loaded.keys() == set(KEYS)
    assert all(torch.equal(loaded[name], TENSORS[name]) for name in KEYS)
    assert times_asked(server) == {"/one/model.safetensors": 2}


def test_parts_of_tensors(server):
    """Rows, and columns, for which gaps between the rows are read."""
    url = server.url("/one/model.safetensors")
    rows = load_files(url, plan={"*": slice(1, 3)}, storage_options=FAST)
    assert all(torch.equal(rows[name], TENSORS[name][1:3]) for name in TENSORS)
    columns = load_files(url, plan={"t0?": (slice(None), slice(5, 7))}, storage_options=FAST)
    assert all(torch.equal(columns[name], TENSORS[name][:, 5:7]) for name in columns)
    with safe_open(url, "pt", storage_options=FAST) as f:
        assert torch.equal(f.get_slice("t05")[3:5], TENSORS["t05"][3:5])
        assert torch.equal(f.get_slice("t07")[:, 9], TENSORS["t07"][:, 9])
    assert times_asked(server) == {"/one/model.safetensors": 6}


def test_bytes_that_have_passed(server):
    """The server sends the file again, a few times; then the error says what to do."""
    with safe_open(server.url("/one/model.safetensors"), "pt", storage_options=FAST) as f:
        for name in ("t08", "t06", "t04", "t02"):
            assert torch.equal(f.get_tensor(name), TENSORS[name])
        assert times_asked(server) == {"/one/model.safetensors": 5}
        with pytest.raises(SafetensorError, match=re.escape(NO_RANGES)) as caught:
            f.get_tensor("t01")
        assert str(caught.value).endswith("or download the file")
        assert torch.equal(f.get_tensor("t09"), TENSORS["t09"])
    assert times_asked(server) == {"/one/model.safetensors": 5}


def test_a_second_pass(server):
    with safe_open(server.url("/one/model.safetensors"), "pt", storage_options=FAST) as f:
        assert f.get_tensors().keys() == f.get_tensors().keys() == TENSORS.keys()
    assert times_asked(server) == {"/one/model.safetensors": 3}


def test_memory(tmp_path):
    """A load takes its tensors, and some chunks."""
    size = 100 * MIB
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": memory_of(size // 2), "b": memory_of(size // 2)}, path)
    with MisbehavingServer("ignores_ranges", {"/m.safetensors": path}) as server:
        url = server.url("/m.safetensors")
        before = peak_kib()
        for _, tensor in stream_files(url, storage_options=FAST, budget_bytes=1):
            assert tensor.numel() == size // 2
            del tensor
        assert peak_kib() - before < (size + 40 * MIB) >> 10


def test_memory_of_what_is_skipped(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": memory_of(100 * MIB), "b": memory_of(MIB)}, path)
    with MisbehavingServer("ignores_ranges", {"/m.safetensors": path}) as server:
        before = peak_kib()
        loaded = load_files(server.url("/m.safetensors"), keys=["b"], storage_options=FAST)
        assert loaded["b"].numel() == MIB
        assert peak_kib() - before < (40 * MIB) >> 10


def memory_of(nbytes):
    """Returns an array of zeros."""
    import numpy

    return numpy.zeros(nbytes, numpy.uint8)


def peak_kib():
    """Returns the most memory that the process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_a_body_that_is_cut_goes_on_where_it_ended(folder):
    """By a second answer, of which what has come is skipped."""
    content = (folder / "one/model.safetensors").read_bytes()
    with MisbehavingServer("whole_is_cut", {"/m": content}, times=2) as server:
        server.otherwise = MODES["ignores_ranges"]
        reader = HttpReader(Url.parse(server.url("/m")), Settings.of(FAST))
        size, first = reader.open(64 * KIB)
        assert (size, bytes(first)) == (len(content), content[: 64 * KIB])
        assert bytes(reader.read(64 * KIB, size - 64 * KIB)) == content[64 * KIB :]
        assert server.requests == 3
        reader.close()


def test_a_first_answer_that_is_cut_goes_on(folder):
    content = (folder / "one/model.safetensors").read_bytes()
    with MisbehavingServer("whole_is_cut", {"/m": content}, times=1) as server:
        server.otherwise = MODES["ignores_ranges"]
        reader = HttpReader(Url.parse(server.url("/m")), Settings.of(FAST))
        size, first = reader.open(len(content) - KIB)
        assert (size, bytes(first)) == (len(content), content[:-KIB])
        assert server.requests == 2
        assert bytes(reader.read(size - KIB, KIB)) == content[-KIB:]
        reader.close()


def test_a_range_after_a_body_that_was_cut_while_it_was_skipped(folder):
    """What was to be skipped of the one answer is not dropped from the other one."""
    content = (folder / "one/model.safetensors").read_bytes()
    with MisbehavingServer("whole_is_cut", {"/m": content}, times=2) as server:
        reader = HttpReader(Url.parse(server.url("/m")), Settings.of(FAST))
        reader.open(KIB)
        assert bytes(reader.read(10 * MIB, MIB)) == content[10 * MIB : 11 * MIB]
        assert server.requests == 3
        reader.close()


def test_a_server_with_ranges_that_sends_all(folder):
    content = (folder / "one/model.safetensors").read_bytes()
    with MisbehavingServer("ignores_ranges", {"/m": content}, after=1) as server:
        reader = HttpReader(Url.parse(server.url("/m")), Settings.of(FAST))
        reader.open(KIB)
        text = "the server sent a range of it before, and now all of it instead of a range"
        with pytest.raises(SafetensorError, match=text):
            reader.read(MIB, KIB)
        reader.close()


def test_another_version(server):
    reader = HttpReader(Url.parse(server.url("/one/model.safetensors")), Settings.of(FAST))
    reader.open(64 * KIB)
    reader.read(64 * KIB, KIB)
    content = server.files["/one/model.safetensors"]
    server.files["/one/model.safetensors"] = content[:-1] + bytes([content[-1] ^ 1])
    # Read from the answer that is there; and then from another.
    assert bytes(reader.read(65 * KIB, KIB)) == content[65 * KIB : 66 * KIB]
    with pytest.raises(SafetensorError) as caught:
        reader.read(64 * KIB, KIB)
    assert caught.value.code == "file_changed"
    reader.close()


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_threads_take_turns(server, order, monkeypatch):
    """Each waits for the bytes before its own."""
    monkeypatch.setattr(in_order, "_GRACE", 20)
    content = server.files["/one/model.safetensors"]
    reader = HttpReader(Url.parse(server.url("/one/model.safetensors")), Settings.of(FAST))
    reader.open(64 * KIB)
    assert reader.concurrency == 1
    begins = [64 * KIB + i * 100 * KIB for i in order]
    with contextlib.ExitStack() as stack:
        reads = []
        for begin in begins:
            pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
            reads.append(pool.submit(reader.read, begin, 100 * KIB))
            time.sleep(0.05)
        for begin, read in zip(begins, reads, strict=True):
            assert bytes(read.result()) == content[begin : begin + 100 * KIB]
    assert server.requests == 2
    reader.close()


def test_a_read_that_waits_is_cancelled(server, monkeypatch):
    monkeypatch.setattr(in_order, "_GRACE", 60)
    reader = HttpReader(Url.parse(server.url("/one/model.safetensors")), Settings.of(FAST))
    reader.open(64 * KIB)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit(reader.read, MIB, KIB)
        time.sleep(0.1)
        reader.cancel()
        with pytest.raises(SafetensorError, match="was cancelled"):
            read.result(10)
    reader.close()


# Without a length


def index_of(*files):
    """Returns an index that puts a tensor into each file."""
    return json.dumps({"weight_map": {f"t{i}": file for i, file in enumerate(files)}}).encode()


@pytest.mark.parametrize("mode", ["whole_in_chunks", "whole_until_the_close"])
def test_an_index_without_a_length(mode, monkeypatch):
    index = index_of("m.safetensors").ljust(300_000)
    with MisbehavingServer(mode, {"/i.json": index}) as server:
        assert [each.names for each in find_shards(server.url("/i.json"), FAST)] == [["t0"]]
        assert server.requests == 1
        monkeypatch.setattr(probes, "_FIRST_OF_INDEX", 1000)
        assert [each.names for each in find_shards(server.url("/i.json"), FAST)] == [["t0"]]
        monkeypatch.setattr("safetensors._json.MAX_NBYTES", 200_000)
        with pytest.raises(SafetensorError, match="does not say how long it is, and sends more"):
            find_shards(server.url("/i.json"), FAST)


def test_an_index_whose_chunks_are_cut():
    """All of it is asked for again: what has come may be of another version."""
    with MisbehavingServer("chunks_are_cut", {"/i.json": index_of("m")}, times=1) as server:
        assert find_shards(server.url("/i.json"), FAST)[0].names == ["t0"]
        assert [request.range for request in server.log] == ["bytes=0-16777215"] * 2


@pytest.mark.parametrize("mode", ["whole_in_chunks", "whole_until_the_close"])
def test_a_file_without_a_length(mode):
    """A short one is read whole. Of a long one, nobody could tell whether all of it came."""
    content = safetensors.numpy.save({"a": memory_of(1000)})
    with MisbehavingServer(mode, {"/m": content, "/long": bytes(MIB)}) as server:
        assert load_file(server.url("/m"), storage_options=FAST)["a"].numel() == 1000
        text = "does not say how long it is, and sends more than 524288 bytes: download it, or let"
        with pytest.raises(SafetensorError, match=text):
            load_file(server.url("/long"), storage_options=FAST)


def test_a_server_with_ranges_is_not_read_in_order(folder):
    with RangeServer({"/m": (folder / "one/model.safetensors").read_bytes()}) as server:
        reader = HttpReader(Url.parse(server.url("/m")), Settings.of(FAST))
        reader.open(KIB)
        assert reader.concurrency == 32
        reader.read(5000, 5)
        reader.close()

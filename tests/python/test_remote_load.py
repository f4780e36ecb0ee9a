"""Loads of remote models by safe_open and load_files when servers err, and when processes end."""

import json
import struct
import subprocess
import time

import pytest

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_files, save_file, stream_files
from support import children, misbehaving
from support.remote_engines import (
    ENGINES,
    FAST,
    PATH,
    SECRETS,
    Words,
    address,
    interrupt,
    kind_of,
    server_of,
)
from support.servers import RangeServer

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.slow

TENSORS = {f"layer.{i}": torch.randint(-9, 9, (400 + i, 1000)) for i in range(4)}


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a file of TENSORS: 13 MB, of which the first read takes 512 KiB."""
    path = tmp_path_factory.mktemp("remote") / "model.safetensors"
    save_file(TENSORS, path)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _little_waiting(monkeypatch):
    monkeypatch.setattr("safetensors._remote.retry._FIRST_DELAY", 0.01)


def at(engine, server, **options):
    url, settings = address(engine, server)
    return url, FAST | settings | options


def by_load_files(url, options):
    return load_files(url, storage_options=options)


def by_stream_files(url, options):
    return dict(stream_files(url, storage_options=options))


def by_safe_open(url, options):
    with safe_open(url, "pt", storage_options=options) as f:
        return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118


WAYS = [by_load_files, by_stream_files, by_safe_open]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
def test_a_good_server(engine, way, content):
    with server_of(engine, RangeServer, {PATH: content}) as server:
        loaded = way(*at(engine, server))
        assert loaded.keys() == TENSORS.keys()
        assert all(torch.equal(loaded[name], TENSORS[name]) for name in TENSORS)


def test_a_load_takes_the_highest_concurrency(content):
    with server_of("http", RangeServer, {PATH: content}) as server:
        url, options = at("http", server, concurrency=256)
        assert load_files(url, storage_options=options).keys() == TENSORS.keys()
        with pytest.raises(SafetensorError, match="'concurrency' is not an integer from 1 to 256"):
            load_files(url, storage_options={**options, "concurrency": 257})


# A mode for each class of error: test_remote_matrix.py has all modes.
MODES = {
    "body_longer": "io",
    "body_stalls": "timeout",
    "resets": "connection",
    "replaced_ignoring_if_match": "changed",
    "status_403": "denied",
    "status_404": "missing",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_errs_after_the_header(engine, mode, content):
    with (
        server_of(engine, misbehaving.MisbehavingServer, mode, {PATH: content}, after=1) as server,
        Words() as words,
    ):
        url, options = at(engine, server)
        begin = time.monotonic()
        with pytest.raises(SafetensorError) as caught:
            by_load_files(url, options)
        assert time.monotonic() - begin < 10
        assert kind_of(caught.value) == MODES[mode], caught.value
        words.check(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_handle_shows_no_secret(engine, content):
    with server_of(engine, RangeServer, {PATH: content}) as server, Words() as words:
        url, options = at(engine, server)
        with safe_open(url, "pt", storage_options=options) as f:
            words.check(f, f.get_slice("layer.0"), f.metadata())
            with pytest.raises(SafetensorError) as caught:
                f.get_tensor("absent")
            words.check(caught.value)
        words.check(f)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001, 1 << 31])
def test_a_header_that_cannot_be(engine, length):
    content = struct.pack("<Q", length) + b"{}" + bytes(1000)
    with server_of(engine, RangeServer, {PATH: content}) as server:
        url, options = at(engine, server)
        with pytest.raises(SafetensorError, match="[Hh]eader"):
            by_safe_open(url, options)
        assert server.requests == 1
        assert server.bytes_sent == len(content)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["huge", "body_endless_chunked"])
def test_an_index_that_is_too_large(engine, mode):
    path = "/bucket/model.safetensors.index.json"
    with server_of(engine, misbehaving.MisbehavingServer, mode, {path: b"{}"}) as server:
        url, options = address(engine, server, path)
        with pytest.raises(SafetensorError):
            by_load_files(url, FAST | options)
        assert server.requests == 1


# Processes

LOAD = """
import contextlib, json, sys, threading, time
from safetensors import SafetensorError
from safetensors.torch import load_files
def say(*words):
    print(*words, flush=True)
url, options = sys.argv[1], json.loads(sys.argv[2])
"""
CTRL_C = """
try:
    load_files(url, storage_options=options)
except KeyboardInterrupt:
    say("interrupted")
    raise SystemExit(7)
"""
EXIT = """
def load():
    with contextlib.suppress(SafetensorError):  # at exit, loads are stopped
        load_files(url, storage_options=options)
threading.Thread(target=load, daemon=True).start()
time.sleep(1)
say("leaving")
"""
LONG = {"timeout": 600, "idle_timeout": 600, "tries": 50}


def arguments(engine, server):
    url, options = address(engine, server)
    return [url, json.dumps(options | LONG)]


@pytest.mark.parametrize("engine", ["http", "s3"])
@pytest.mark.parametrize("mode", ["body_stalls", "status_503"])
def test_ctrl_c_ends_a_load(engine, mode, content):
    with server_of(engine, misbehaving.MisbehavingServer, mode, {PATH: content}, after=1) as server:
        command = children.command(LOAD + CTRL_C, *arguments(engine, server))
        process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)
        with process:
            interrupt(process, server)


@pytest.mark.parametrize("engine", ["http", "s3"])
def test_exit_while_a_load_is_under_way(engine, content):
    with server_of(
        engine, misbehaving.MisbehavingServer, "body_stalls", {PATH: content}, after=1
    ) as server:
        done = children.run_raw(LOAD + EXIT, *arguments(engine, server), timeout=60)
        assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
        assert server.requests > 1
        assert not any(secret in done.stderr for secret in SECRETS.values())

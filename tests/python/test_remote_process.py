"""Remote readers and the life of a process: fork, exit and Ctrl-C while reads are under way."""

import json
import subprocess
import time

import pytest

from support import children
from support.misbehaving import MisbehavingServer
from support.remote_engines import ENGINES, PATH, address, interrupt, server_of
from support.servers import RangeServer

pytestmark = pytest.mark.slow

CONTENT = bytes(i * 31 % 251 for i in range(300 << 10))
OPEN = """
import contextlib, json, os, sys, threading, time
from safetensors import SafetensorError
from safetensors._remote.open import open_reader
url, options = sys.argv[1], json.loads(sys.argv[2])
reader = open_reader(url, options)
size, first = reader.open(100)
assert size == 300 << 10, size
def say(*words):
    print(*words, flush=True)
"""
FORK = (
    OPEN
    + """
expected = bytes(i * 31 % 251 for i in range(1000, 3000))
child = os.fork()
if child == 0:
    for make in (lambda: reader, lambda: open_reader(url, options)):
        try:
            each = make()
            if each is not reader:
                each.open(100)
            assert bytes(each.read(1000, 2000)) == expected
            say("read", each is reader)
        except SafetensorError as error:
            say("refused", error)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(bytes(reader.read(5000, 2000))) == 2000
say("parent read")
"""
)
EXIT = (
    OPEN
    + """
def read():
    with contextlib.suppress(SafetensorError):  # at exit, reads may be cancelled
        reader.read(1000, 100000)
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
say("reading")
time.sleep(0.3)
"""
)
CTRL_C = (
    OPEN
    + """
say("reading")
try:
    reader.read(1000, 100000)
except KeyboardInterrupt:
    say("interrupted")
    raise SystemExit(7)
"""
)
LONG = {"timeout": 600, "idle_timeout": 600}


def arguments(engine, server, **options):
    """Returns the arguments of a child: the URL and the storage options."""
    url, settings = address(engine, server)
    return [url, json.dumps(settings | options)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_is_refused_or_reads_right_bytes(engine):
    with server_of(engine, RangeServer, {PATH: CONTENT}) as server:
        lines = children.run(FORK, *arguments(engine, server), timeout=60).splitlines()
    assert lines[0].startswith("refused ")  # the parent's reader
    assert lines[1].startswith(("refused ", "read False"))
    assert lines[2] == "parent read"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["body_stalls", "silent"])
def test_exit_does_not_wait_for_reads(engine, mode):
    with server_of(engine, MisbehavingServer, mode, {PATH: CONTENT}, after=1) as server:
        begin = time.monotonic()
        done = children.run_raw(EXIT, *arguments(engine, server, **LONG), timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert time.monotonic() - begin < 10
        assert server.requests > 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["body_drips", "status_503"])
def test_ctrl_c_ends_a_read(engine, mode):
    options = LONG | {"tries": 50}
    with server_of(engine, MisbehavingServer, mode, {PATH: CONTENT}, after=1) as server:
        command = children.command(CTRL_C, *arguments(engine, server, **options))
        process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout.readline() == "reading\n"
            interrupt(process, server)

"""Runs the command line as a user would."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

import pytest

import safetensors
from support import file_builder, forked
from support.file_builder import raw

BLOCKED = """
import sys
for name in {names!r}:
    sys.modules[name] = None
from safetensors._cli.main import main
sys.exit(main())
"""


def started(without=()):
    """Returns the command that starts it. Modules in `without` cannot be imported."""
    if without:
        return [sys.executable, "-c", BLOCKED.format(names=without)]
    return [sys.executable, "-m", "safetensors"]


RUN = """
import runpy
runpy.run_module("safetensors", run_name="__main__", alter_sys=True)
"""


def run(*words, status=0, cwd=None, env=None, without=(), imports=forked.NUMPY, **more):
    """Returns the finished process. Checks its exit status, unless that is None, and that stderr
    has no traceback.

    It is a fork of a process that has imported `imports`, unless modules in `without` cannot be
    imported, or the new process gets what a fork does not: see `forked.run`.
    """
    words = [*map(os.fspath, words)]
    env = {**os.environ, **(env or {})}
    if without or not more.keys() <= {"stdin", "timeout"}:
        done = subprocess.run(
            [*started(without), *words],
            cwd=cwd,
            env=env,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
            **more,
        )
    else:
        done = forked.run(
            RUN,
            [*map(os.fsdecode, words)],
            imports=imports,
            env=env,
            cwd=cwd or os.getcwd(),
            **more,
        )
    assert "Traceback" not in done.stderr, done.stderr
    assert status in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
    return done


def output(*words, **options):
    """Returns its output."""
    return run(*words, **options).stdout


def parsed(*words, **options):
    """Returns its output with --json, parsed."""
    return json.loads(output(*words, "--json", **options))


def complaint(*words, status=2, **options):
    """Returns the only line on stderr, without its prefix."""
    done = run(*words, status=status, **options)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("safetensors: ").rstrip("\n")


def on_terminal(*words, without=(), columns=100, status=0):
    """Returns its output to a terminal, from stdout and stderr, with escape sequences."""
    words = [*map(os.fspath, words)]
    if without or not forked.AVAILABLE:
        return in_terminal([*started(without), *words], columns, status)

    def start(env, slave):
        return forked.Fork(RUN, words, [slave] * 3, forked.NUMPY, env, os.getcwd())

    return _in_terminal(start, columns, status, {})


def in_terminal(command, columns=100, status=0, env=None):
    """Returns the output of a program to a terminal."""

    def start(environment, slave):
        streams = {"stdin": subprocess.DEVNULL, "stdout": slave, "stderr": slave}
        return subprocess.Popen(command, **streams, env=environment)

    return _in_terminal(start, columns, status, env or {})


def _in_terminal(start, columns, status, env):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **env}
    environment.pop("NO_COLOR", None)
    with open(slave, "wb", buffering=0) as terminal:
        process = start(environment, terminal)
    pieces, end = [], time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # EIO: nobody writes any more
                break
            pieces.append(piece)
    os.close(master)
    with process:
        assert process.wait(10) == status
    return b"".join(pieces).decode()


# In a process between: the peak of a child includes the memory of the process that forked it.
MEASURED = """
import resource, subprocess, sys
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
status = subprocess.call(sys.argv[2:], stdout=subprocess.DEVNULL)
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def peak_memory(*words, limit_nbytes=0):
    """Returns its exit status and its peak memory; `limit_nbytes` limits its address space.

    Skips the test under a sanitizer, which allocates memory too.
    """
    if "asan" in safetensors.__version__:
        pytest.skip("a sanitizer takes memory of its own")
    command = [sys.executable, "-m", "safetensors", *map(os.fspath, words)]
    printed = subprocess.run(
        [sys.executable, "-c", MEASURED, str(limit_nbytes), *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    status, most = map(int, printed.split())
    return status, most


def write(path, tensors, metadata=None, **options):
    """Writes a file with a dict of tensors, in this order, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file_builder.to_bytes(tensors, metadata, **options))
    return path


def write_index(folder, weight_map, total_size=None, name="model.safetensors.index.json"):
    """Writes an index of shards and returns its path."""
    metadata = {} if total_size is None else {"total_size": total_size}
    path = folder / name
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def sums_of(path):
    """Returns the path of the sums beside a file."""
    return path.with_name(path.name.removesuffix(".safetensors") + ".sums.json")


def small():
    """Returns a few tensors of several dtypes."""
    return {
        "h.0.weight": raw("F32", (2, 3)),
        "h.2.weight": raw("F32", (2, 3)),
        "h.10.weight": raw("F32", (4,)),
        "h.0.bias": raw("BF16", (3,)),
        "mask": raw("BOOL", (5,)),
    }


def sharded(folder):
    """Writes small() to two shards and returns the path of their index."""
    tensors = small()
    names = list(tensors)
    halves = {"a.safetensors": names[:2], "b.safetensors": names[2:]}
    for file, part in halves.items():
        write(folder / file, {name: tensors[name] for name in part}, {"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    total = sum(len(tensor.data) for tensor in tensors.values())
    return write_index(folder, weight_map, total)

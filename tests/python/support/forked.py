"""Runs Python programs in forks of a process that has imported what they need.

`import torch` and the end of a process with it take seconds of processor time, a fork
milliseconds. A fork has its own memory, environment, working directory and standard streams, as any
process. What it lacks is the interpreter's start and end: tests of imports, of memory, of threads
and of Ctrl-C run new interpreters.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types

TESTS = str(pathlib.Path(__file__).parents[1])
AVAILABLE = sys.platform.startswith("linux")
"""Whether a process may fork after it has imported torch: on macOS system libraries forbid it."""

NUMPY = ("safetensors._cli.main", "safetensors.numpy", "numpy")
TORCH = (*NUMPY, "safetensors.torch", "safetensors.dcp")
TORCH += ("torch.distributed.checkpoint", "torch.distributed.tensor", "torch.multiprocessing")
"""What most programs import: each other list would have a process of its own."""

AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MALLOC_", "CUDA_")
"""Beginnings of variables that a process reads at its start only."""


def run(code, words=(), *, imports=(), env=None, cwd="/", stdin=subprocess.DEVNULL, timeout=120):
    """Runs a program as `python -c code words...` does; returns the finished process, with text.

    Args:
        imports: the modules that the process which forks has imported, but those that are not
            installed. Without any, or if `env` changes what a process reads at its start, the
            program gets a new interpreter.
    """
    if not imports or not can_fork(env):
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=cwd,
            env=env,
            stdin=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        if stdin in (None, subprocess.DEVNULL):
            stdin = stack.enter_context(open(os.devnull, "rb"))
        with Fork(code, words, [stdin, *files], imports, env, cwd) as fork:
            returncode = fork.wait(timeout)
        for file in files:
            file.seek(0)
        printed = [file.read().decode() for file in files]
    return subprocess.CompletedProcess([code, *words], returncode, *printed)


class Fork:
    """A running program. `streams` are its standard input, output and error, as files."""

    def __init__(self, code, words, streams, imports, env, cwd):
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("r")
        request = {"code": code, "words": [*words], "cwd": os.fspath(cwd)}
        request["env"] = dict(os.environ if env is None else env)
        with theirs:
            _parent(tuple(imports), os.getpid()).send(request, [*streams, theirs])
        self.pid = int(self._answers.readline())

    def wait(self, timeout):
        """Returns the exit status, as Popen.wait does; kills a program that takes too long."""
        if not select.select([self._socket], [], [], timeout)[0]:
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("a fork", timeout)
        return int(self._answers.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._answers.close()
        self._socket.close()


def can_fork(env):
    """Returns whether a fork is as good as a new interpreter for these variables, or None."""

    def at_start(variables):
        return {name: text for name, text in variables.items() if name.startswith(AT_START)}

    return AVAILABLE and (env is None or at_start(env) == at_start(os.environ))


class _Parent:
    """The process that has imported the modules, and forks. It lives until this process ends."""

    def __init__(self, imports):
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        code = f"import sys; path = [*sys.path]; sys.path.insert(0, {TESTS!r}); "
        code += f"from support import forked; forked.serve({theirs.fileno()}, {imports!r}, path)"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd="/",
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for pytest
            )
        self._owner = os.getpid()
        atexit.register(self._close)

    def send(self, request, files):
        data = json.dumps(request).encode()
        numbers = [file.fileno() for file in files]
        with self._lock:
            socket.send_fds(self._socket, [len(data).to_bytes(8, "little")], numbers)
            self._socket.sendall(data)

    def _close(self):
        if os.getpid() == self._owner:
            self._socket.close()
            self._process.wait(60)


@functools.cache
def _parent(imports, _):
    return _Parent(imports)


def serve(number, imports, path):
    """Forks for each request of the socket, until its other end is closed."""
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.path[:] = path
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as requests:
        while True:
            length, files, *_ = socket.recv_fds(requests, 8, 4)
            if not length:
                os._exit(0)
            request = json.loads(_read(requests, int.from_bytes(length, "little")))
            if os.fork() == 0:
                requests.close()
                _watch(request, files)
            for file in files:
                os.close(file)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _read(requests, count):
    data = b""
    while len(data) < count:
        data += requests.recv(count - len(data))
    return data


def _watch(request, files):
    """Runs the program in a process of its own, and reports its number and its exit status."""
    pid = os.fork()
    if pid == 0:
        os.close(files.pop())
        _run(request, files)
    with socket.socket(fileno=files[-1]) as answers:
        answers.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(request, files):
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv[:] = ["-c", *request["words"]]
    # Not those of the parent, which remember whether they can seek.
    sys.stdin = sys.__stdin__ = _stream(0, "r", sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, "w", sys.stdout, os.isatty(1))
    sys.stderr = sys.__stderr__ = _stream(2, "w", sys.stderr, True)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    code = 0
    try:
        exec(compile(request["code"], "<string>", "exec"), module.__dict__)
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    os._exit(code or 0)


def _stream(number, mode, old, line_buffering=False):
    buffering = 1 if line_buffering else -1
    options = {"encoding": old.encoding, "errors": old.errors, "closefd": False}
    return open(number, mode, buffering, **options)

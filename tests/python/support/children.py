"""Runs Python code in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

from support import forked


def run(script, *args, prefix=(), imports=(), timeout=120, env=None):
    """Returns what the script printed. A non-zero exit status fails the calling test.

    With `imports`, these have been imported before, and the process is a fork; see forked.py.
    """
    if imports:
        assert not prefix
        *_, code = command(script)
        done = forked.run(code, [*map(str, args)], imports=imports, env=env, timeout=timeout)
    else:
        done = run_raw(script, *args, prefix=prefix, timeout=timeout, env=env)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_raw(script, *args, prefix=(), timeout=120, env=None):
    """Returns the finished process, for callers that check its exit status and stderr.

    It is a new interpreter.
    """
    return subprocess.run(
        command(script, *args, prefix=prefix),
        cwd="/",  # "-c" puts the working directory in front of sys.path
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextlib.contextmanager
def started(script, *args, imports):
    """Yields a running fork with its number as `pid` and its output as `stdout`, a text file.

    It is killed at the end.
    """
    reading, writing = os.pipe()
    with open(reading) as stdout, open(os.devnull) as nothing:
        with open(writing, "wb") as writer:
            streams = [nothing, writer, sys.__stderr__]
            *_, code = command(script)
            fork = forked.Fork(code, [*map(str, args)], streams, imports, None, "/")
        with fork:
            fork.stdout = stdout
            yield fork
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork.pid, signal.SIGKILL)
            fork.wait(60)


def command(script, *args, prefix=()):
    """Returns the command that starts the interpreter. The script can import `support`."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    script = f"import sys\nsys.path.insert(0, {tests!r})\n{textwrap.dedent(script)}"
    return [str(word) for word in (*prefix, sys.executable, "-c", script, *args)]

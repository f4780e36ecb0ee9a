"""Runs Python code in a fresh interpreter."""

import os
import subprocess
import sys
import textwrap


def run(script, *args, prefix=(), timeout=120, env=None):
    """Returns what the script printed. A non-zero exit status fails the calling test."""
    done = run_raw(script, *args, prefix=prefix, timeout=timeout, env=env)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_raw(script, *args, prefix=(), timeout=120, env=None):
    """Returns the finished process, for callers that check its exit status and stderr."""
    return subprocess.run(
        command(script, *args, prefix=prefix),
        cwd="/",  # "-c" puts the working directory in front of sys.path
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(script, *args, prefix=()):
    """Returns the command that starts the interpreter. The script can import `support`."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    script = f"import sys\nsys.path.insert(0, {tests!r})\n{textwrap.dedent(script)}"
    return [str(word) for word in (*prefix, sys.executable, "-c", script, *args)]

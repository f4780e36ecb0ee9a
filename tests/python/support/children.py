"""Run a piece of Python in a fresh interpreter."""

import os
import subprocess
import sys
import textwrap


def run(script, *args, prefix=(), timeout=120, env=None):
    """Return what the script printed; a non-zero exit fails the calling test."""
    done = run_raw(script, *args, prefix=prefix, timeout=timeout, env=env)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_raw(script, *args, prefix=(), timeout=120, env=None):
    """The same, for a caller that looks at the exit code and stderr itself."""
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
    """The words that start such an interpreter; it can import `support`."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    script = f"import sys\nsys.path.insert(0, {tests!r})\n{textwrap.dedent(script)}"
    return [str(word) for word in (*prefix, sys.executable, "-c", script, *args)]

"""``safetensors-cpp``: enable, disable and status for an environment."""

import contextlib
import os
import site
import subprocess
import sys
from typing import NoReturn

from . import _HERE, _PACKAGE, __version__, _newer_upstream, _upstream_version

_USAGE = """usage: safetensors-cpp COMMAND

  enable   makes `import safetensors` import this package in every process of this environment
  disable  undoes enable
  status   says which package `import safetensors` imports: status 0 if it is this one, else 1

All other commands are those of `python -m safetensors`: ls, show, check, ... See
`safetensors-cpp ls --help`.
"""
_SITE = os.path.dirname(_HERE)
_PTH = os.path.join(_SITE, "safetensors_cpp.pth")
_RECORD = os.path.join(_SITE, f"safetensors_cpp-{__version__}.dist-info", "RECORD")
_STATUS_SECONDS = 120


class _CommandError(Exception):
    """Raised if a command fails. Its text is one sentence."""


def _replace(path: str, text: str) -> None:
    scratch = f"{path}.{os.getpid()}"  # `site` does not read this name
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(scratch)
        raise


def _record(listed: bool) -> None:
    """Lists the .pth file in RECORD, or removes it from there. What is listed, pip uninstalls."""
    line = os.path.basename(_PTH) + ",,"
    try:
        with open(_RECORD, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # conda and Debian keep their own lists
        return
    wanted = [other for other in lines if other != line] + [line] * listed
    if wanted != lines:
        _replace(_RECORD, "".join(other + "\n" for other in wanted))


def _enable() -> int:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if os.path.realpath(_SITE) not in map(os.path.realpath, folders):
        raise _CommandError(f"Python reads no .pth files in {_SITE}, where safetensors_cpp is")
    _record(True)
    # An entry of sys.path that does not exist any more is ignored.
    _replace(
        _PTH,
        "# `safetensors-cpp enable` wrote this file, and `safetensors-cpp disable` removes it.\n"
        f"import sys; sys.path.insert(0, {_PACKAGE!a})\n",
    )
    print(f"enabled by {_PTH}")
    return 0


def _disable() -> int:
    try:
        os.remove(_PTH)
        print(f"removed {_PTH}")
    except FileNotFoundError:
        print("not enabled")
    _record(False)
    return 0


def _status() -> int:
    done = subprocess.run(
        [sys.executable, "-c", "import safetensors as s; print(s.__version__, s.__file__)"],
        cwd=_HERE,  # where no module is called safetensors
        capture_output=True,
        text=True,
        timeout=_STATUS_SECONDS,
        check=False,
    )
    installed = _upstream_version()
    print(f"safetensors-cpp {__version__}: {'' if os.path.exists(_PTH) else 'not '}enabled")
    print(f"importlib.metadata finds: {installed or 'no distribution safetensors'}")
    if done.returncode != 0:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise _CommandError(f"`import safetensors` fails: {error}")
    version, _, origin = done.stdout.strip().partition(" ")
    print(f"`import safetensors` imports: {version} from {origin}")
    return 0 if origin.startswith(os.path.join(_PACKAGE, "")) else 1


def _fail(message: object) -> NoReturn:
    print(f"safetensors-cpp: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> int:
    """Runs the command line. Returns the exit status."""
    text = _newer_upstream()
    if text is not None:
        print(f"safetensors-cpp: {text}", file=sys.stderr)
    words = sys.argv[1:]
    command = {"enable": _enable, "disable": _disable, "status": _status}.get(" ".join(words))
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if words else 2
    if command is None:
        if words[0] in ("enable", "disable", "status"):
            _fail(f"{words[0]} takes no arguments")
        from safetensors.__main__ import main as other

        return other()
    try:
        return command()
    except (_CommandError, OSError, subprocess.TimeoutExpired) as error:
        _fail(error)

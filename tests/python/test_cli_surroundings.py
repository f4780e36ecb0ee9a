"""The command line without docstrings, and with standard streams that are closed."""

import subprocess
import sys

import numpy as np
import pytest

from support import cli

COMMANDS = (
    ["ls"],
    ["meta"],
    ["show", "{path}", "x.1"],
    ["check"],
    ["hash"],
    ["diff", "{path}", "{path}"],
    ["recover"],
    ["--help"],
    ["ls", "--help"],
)


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "a.safetensors"
    cli.write(made, {f"x.{i}": np.ones(2, "u1") for i in range(3)}, {"k": "v"})
    return made


def words_of(command, path):
    words = command if len(command) > 1 or command[0].startswith("-") else [*command, "{path}"]
    return [word.format(path=path) for word in words]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_optimised(path, command):
    """-OO leaves out assertions, as -O does, and docstrings."""
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "safetensors", *words_of(command, path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


ABSENT = ["ls", "{path}.absent"]


@pytest.mark.parametrize(
    ("command", "closed"),
    [(command, "<&- >&- 2>&-") for command in COMMANDS]
    + [(["ls"], ">&-"), (["--help"], ">&-"), (["ls"], "2>&-"), (["ls"], ">&- 2>&-")]
    + [(ABSENT, closed) for closed in (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")],
)
def test_closed_streams(path, closed, command):
    """The exit status is as ever, and an error is one line."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    done = subprocess.run(
        [*shell, sys.executable, "-m", "safetensors", *words_of(command, path)],
        capture_output=True,
        text=True,
        check=False,
    )
    is_absent = command[-1].endswith("absent")
    assert done.returncode == (2 if is_absent else 0), done.stderr
    assert len(done.stderr.splitlines()) == (1 if is_absent and "2>&-" not in closed else 0)

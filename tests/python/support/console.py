"""Runs the console blocks of the documents: commands after `$ `, each with its expected output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENVIRONMENT = {"COLUMNS": "80", "LC_ALL": "C.UTF-8"}
_SHELL = """
safetensors() { "$PYTHON" -m safetensors "$@"; }
status=0
"""
_END = "=== end of the output, status "


def commands_of(block: str) -> list[tuple[str, str]]:
    """Returns the commands of a block, each with the output that the block shows."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def run(block: str, folder: Path) -> list[tuple[str, int]]:
    """Runs the commands of a block in one shell; returns the output and the status of each.

    HOME is the folder. `safetensors` is the package under test.
    """
    script = _SHELL
    for command, _ in commands_of(block):
        # As for a user who types, what two commands write has different times.
        script += f'sleep 0.02; (exit "$status")\n{command}\nstatus=$?; echo "{_END}$status"\n'
    # Python's output is buffered, as that of most users is.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**environment, "PYTHON": sys.executable, **ENVIRONMENT, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    found = re.findall(rf"(.*?){_END}(\d+)\n", done.stdout, re.DOTALL)
    return [(output, int(status)) for output, status in found]


def check(block: str, folder: Path) -> None:
    """Checks that each command prints what the block shows.

    A command for which no output is shown must succeed. A line `...` stands for any lines.
    """
    commands = commands_of(block)
    assert "".join(f"$ {command}\n{shown}" for command, shown in commands) == block
    for (command, shown), (output, status) in zip(commands, run(block, folder), strict=True):
        pattern = re.escape(shown).replace(re.escape("...\n"), "(?:.*\n)*?")
        assert re.fullmatch(pattern, output), f"$ {command}\n{output}"
        assert shown or status == 0, command

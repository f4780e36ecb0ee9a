"""The programs of the documents."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import console, forked

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def site_script(name: str) -> ModuleType:
    """Returns a module of scripts/site, which may import others of that folder."""
    folder = str(ROOT / "scripts" / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module(name)


class Page:
    """A page, such as `docs/saving.md`, with its text and its Python programs in their order."""

    def __init__(self, name: str) -> None:
        self.path = ROOT / name
        self.text = self.path.read_text(encoding="utf-8")
        self.programs: list[str] = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    def program(self, part: str = "") -> str:
        """Returns the only program, or the only one that contains a text."""
        (found,) = (program for program in self.programs if part in program)
        return found

    def run(self, program: str, scope: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs a program in this process; returns its variables."""
        scope = {} if scope is None else scope
        exec(compile(program, self.path, "exec"), scope)
        return scope


def run_in_order(page: str, folder: Path) -> dict[str, Any]:
    """Runs all blocks of Python and of commands of a page in one session, in an empty folder.

    Each has to print what the page shows. Returns the variables.
    """
    scope: dict[str, Any] = {"__name__": "__main__"}
    for kind, block, shown in BLOCK.findall(page):
        if kind == "console":
            console.check(block, folder)
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, "page", "exec"), scope)
        assert out.getvalue() == shown
    return scope


def run_alone(program: str, folder: Path, *, options: tuple[str, ...] = ()) -> str:
    """Runs a program as a file in a folder, in a new interpreter; returns its output."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *options, "program.py"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_on_ranks(program: str, folder: Path, *words: str) -> str:
    """Runs a program on two ranks, in the environment that torchrun makes; returns its output."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def run(rank: str) -> str:
        env = os.environ | group | {"RANK": rank, "LOCAL_RANK": rank}
        done = forked.run(program, words, imports=forked.TORCH, env=env, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor() as pool:
        return "".join(pool.map(run, "01"))

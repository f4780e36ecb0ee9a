"""The programs of the documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


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


def run_alone(program: str, folder: Path, *, launcher: tuple[str, ...] = (), args: str = "") -> str:
    """Runs a program as a file in a folder, in a new interpreter; returns its output."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *launcher, "program.py", *args.split()],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

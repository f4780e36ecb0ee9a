"""The Python programs in docs/jax.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax  # noqa: F401  a test module is skipped where it is not installed

PAGE = Path(__file__).parents[2] / "docs" / "jax.md"


def program_with(text: str) -> str:
    """Returns the program of the page that contains the text."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (program for program in programs if text in program)
    return str(found)


def test_the_program_runs(tmp_path: Path) -> None:
    """As it is, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program_with("save_file(model")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shapes, product = done.stdout.splitlines()
    assert "(None, 'model')" in shapes
    assert shapes.count("(512, 256)") == 8
    assert product == "(2, 1024)"

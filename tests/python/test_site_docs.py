"""docs/tutorial.md and docs/howto.md: their programs print what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```(python|console)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def printed_by_commands(block: str) -> str:
    """Returns the commands of a block with what they print now."""
    lines = []
    for command in re.findall(r"^\$ safetensors (.*)$", block, re.MULTILINE):
        done = subprocess.run(
            [sys.executable, "-m", "safetensors", *shlex.split(command)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not done.stderr
        lines.append(f"$ safetensors {command}\n{done.stdout}")
    return "".join(lines)


@pytest.mark.parametrize(("page", "programs", "commands"), [("tutorial", 9, 5), ("howto", 5, 0)])
def test_the_page_runs(
    page: str, programs: int, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks run in their order, from an empty folder, and print what the page shows."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    kinds = [kind for kind, _, _ in blocks]
    assert (kinds.count("python"), kinds.count("console")) == (programs, commands)
    scope: dict[str, object] = {"__name__": "__main__"}
    for kind, block, shown in blocks:
        if kind == "console":
            assert printed_by_commands(block) == block
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page, "exec"), scope)
        assert out.getvalue() == shown


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs.yml, which only the step `site` of .ci/run reads, names each page of docs/."""
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [path.name for path in DOCS.glob("*.md") if f": {path.name}\n" not in text]
    assert not missing

"""Command-line tests as transcripts: pages of commands after `$ `, each with what it prints.

A page is a Markdown file. Each of its sections has console blocks, and runs in a new folder. Shown
are standard output, then standard error, then the exit status as `[1]`, unless it is 0. A line
`...` stands for any lines, and `...` within a line for any characters.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from support import cli, console

FOLDER = Path(__file__).parents[1] / "transcripts"


def sections(page: str) -> dict[str, str]:
    """Returns the text of each section of a page, by its title."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE))


def printed(command: str, folder: Path) -> str:
    """Runs `VARIABLE=value ... safetensors WORDS...` in a folder, and returns what it printed."""
    words = shlex.split(command)
    begin = words.index("safetensors")
    env = {"COLUMNS": "80", **dict(word.split("=", 1) for word in words[:begin])}
    done = cli.run(*words[begin + 1 :], status=None, cwd=folder, env=env)
    status = f"[{done.returncode}]\n" if done.returncode else ""
    return done.stdout + done.stderr + status


def check(text: str, folder: Path) -> None:
    """Checks the commands of a section's text, in their order."""
    blocks = console.BLOCK.findall(text)
    assert blocks
    for command, shown in (pair for block in blocks for pair in console.commands_of(block)):
        found = printed(command, folder)
        assert re.fullmatch(pattern_of(shown), found), f"$ {command}\n{found}"


def pattern_of(shown: str) -> str:
    return "".join(
        r"(?:.*\n)*?" if line == "...\n" else ".*".join(map(re.escape, line.split("...")))
        for line in shown.splitlines(keepends=True)
    )

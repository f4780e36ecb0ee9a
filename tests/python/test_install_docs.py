"""What docs/install.md says about the version and the extras."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from support import console
from support.pages import Page

PAGE = Page("docs/install.md")


def test_the_command_that_says_which_one_is_running(tmp_path: Path) -> None:
    (block,) = console.BLOCK.findall(PAGE.text)
    console.check(block, tmp_path)


def test_the_extras_add_what_the_table_says() -> None:
    metadata = importlib.metadata.metadata("safetensors")
    rows = re.findall(r"^\| (`[\w`, -]+`) \| ([\w, -]+) \| .* \|$", PAGE.text, re.MULTILINE)
    shown = {name: text for names, text in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert len(shown) == 10
    assert set(shown) <= set(metadata.get_all("Provides-Extra") or ())
    for extra in ("cli", "remote", "sign"):
        ending = f'extra == "{extra}"'
        required = [
            re.split(r"[^\w-]", line)[0]
            for line in metadata.get_all("Requires-Dist") or ()
            if line.replace("'", '"').endswith(ending)
        ]
        assert shown[extra].split(", ") == required

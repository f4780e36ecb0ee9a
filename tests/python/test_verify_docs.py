"""The Python programs in docs/verify.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, and they make the files that the text names. test_verify_load.py and
    test_signing.py run those that load."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    programs = [program for program in programs if "load_files" not in program]
    assert len(programs) >= 1
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(programs), PAGE, "exec"), {})
    assert (tmp_path / "model.sums.json").exists()

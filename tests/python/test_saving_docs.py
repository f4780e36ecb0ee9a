"""The Python programs in docs/saving.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "saving.md"


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, and they make the files that the text names."""
    text = PAGE.read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 5
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile("\n".join(programs), PAGE, "exec"), scope)
    files = {path.name for path in (tmp_path / "model_dir").iterdir()}
    assert len(files) == 3
    assert all(name in text for name in files)
    loaded = scope["tensors"]
    assert isinstance(loaded, dict)
    assert all(torch.equal(each, torch.zeros(250, 1000)) for each in loaded.values())
    assert len(loaded) == 4

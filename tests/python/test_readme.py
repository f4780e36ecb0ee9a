"""The Python program in README.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_readme_program_runs(tmp_path: Path) -> None:
    """The program runs unchanged, and its variables have the values that the text says."""
    programs = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    checks = "\nassert bias.sum() == 64, bias\nassert rows.shape == (10, 64), rows\nprint(*tensors)"
    done = subprocess.run(
        [sys.executable, "-c", programs[0] + checks],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert sorted(done.stdout.split()) == ["bias", "embedding"]


def test_readme_opens_a_model() -> None:
    """The program about models runs with the name of a model."""
    programs = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    model = README.parent / "weights" / "tests" / "data" / "gguf" / "llama_q4_0.gguf"
    done = subprocess.run(
        [sys.executable, "-c", programs[1].replace("model_dir_or_file.gguf", str(model))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first, second = done.stdout.splitlines()
    assert first == "gguf llama 64 21"
    assert second.startswith("Q4_0 (64, 64) ")

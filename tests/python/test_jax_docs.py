"""The Python programs in docs/jax.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from safetensors.numpy import save_file

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


@pytest.mark.filterwarnings("ignore")  # Orbax's own
def test_the_program_for_orbax_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder that has the item's name."""
    pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed")
    array = np.arange(6, dtype=np.float32)
    (tmp_path / "checkpoint" / "model").mkdir(parents=True)
    save_file({"a": array}, tmp_path / "checkpoint" / "model" / "model.safetensors")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    monkeypatch.chdir(tmp_path)
    scope = {"abstract_arrays": {"a": jax.ShapeDtypeStruct((6,), np.float32, sharding=sharding)}}
    exec(compile(program_with("SafetensorsHandler"), PAGE, "exec"), scope)
    assert np.array_equal(scope["arrays"]["a"], array)

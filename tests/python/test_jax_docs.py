"""The Python programs in docs/jax.md."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from safetensors.numpy import save_file
from support.pages import Page, run_alone

PAGE = Page("docs/jax.md")


def test_the_program_runs(tmp_path: Path) -> None:
    """As it is, in a fresh interpreter."""
    output = run_alone(PAGE.program("save_file(model"), tmp_path, options=("-W", "ignore"))
    shapes, product = output.splitlines()
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
    PAGE.run(PAGE.program("SafetensorsHandler"), scope)
    assert np.array_equal(scope["arrays"]["a"], array)

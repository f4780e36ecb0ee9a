"""The Python program in docs/loading.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from safetensors.torch import save_file
from support import sharded

PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs unchanged, and its variables have the values that the text says."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    model = {f"layers.{i}.norm": torch.rand(i, 3) for i in range(10)}
    (tmp_path / "model_dir").mkdir()
    sharded.write(tmp_path / "model_dir", model)
    linear = torch.nn.Linear(64, 64).state_dict()
    save_file(linear, tmp_path / "linear.safetensors")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(program, PAGE, "exec"), scope)
    sharded.check(scope["tensors"], model)
    sharded.check(scope["model"].state_dict(), linear)
    assert scope["norms"] == {name: tensor.norm() for name, tensor in model.items()}
    assert torch.equal(scope["weight"], linear["weight"])

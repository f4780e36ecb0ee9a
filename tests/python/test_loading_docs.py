"""The Python programs in docs/loading.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from safetensors.torch import load, load_file
from support import sharded

PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in their order, from an empty folder, and have the variables that the page says."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(programs[0], PAGE, "exec"), scope)
    assert len(list(tmp_path.glob("model_dir/*.safetensors"))) > 1
    tensors = scope["tensors"]
    assert set(tensors) == {f"layers.{i}.norm" for i in range(10)}
    assert scope["norms"] == {name: tensor.norm() for name, tensor in tensors.items()}
    linear = load_file("linear.safetensors")
    sharded.check(scope["model"].state_dict(), linear)
    assert torch.equal(scope["weight"], linear["weight"])

    exec(compile(programs[1], PAGE, "exec"), scope)
    assert len(scope["member"]) > 512 * 1024  # more than the first request
    assert torch.equal(scope["weight"], load(scope["member"])["weight"])

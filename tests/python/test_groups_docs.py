"""The program in docs/groups.md runs on two ranks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import sharded

PAGE = Path(__file__).parents[2] / "docs" / "groups.md"


@pytest.mark.slow
def test_the_program_runs(tmp_path: Path) -> None:
    """By torchrun, as the page says; it checks the values of both ranks."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(0)
    model = {
        f"{layer}.{name}": torch.rand(shape)
        for layer in range(2)
        for name, shape in {"up.weight": (64, 32), "down.weight": (32, 64), "norm": (32,)}.items()
    }
    (tmp_path / "model").mkdir()
    sharded.write(tmp_path / "model", model)
    torch.save(model, tmp_path / "model.pt")
    check = """
import torch

model = torch.load("model.pt")
rank = mesh.get_local_rank()
assert list(tensors) == list(shares) and set(tensors) == set(model)
for name, values in model.items():
    assert torch.equal(tensors[name], values)
    axis = 1 if "down" in name else 0
    local = values if "norm" in name else values.chunk(2, axis)[rank]
    assert shares[name].shape == values.shape and torch.equal(shares[name].to_local(), local)
"""
    program = program.replace("if dist.get_rank() == 0:", check + "if dist.get_rank() == 0:")
    assert check in program
    (tmp_path / "groups.py").write_text(program, encoding="utf-8")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *command, "groups.py", "model"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "6 tensors, 6 shares"

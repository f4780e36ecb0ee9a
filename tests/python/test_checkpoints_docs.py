"""The Python program in docs/checkpoints.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from safetensors.torch import load_files

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


@pytest.mark.slow
def test_the_program_runs_on_two_ranks(tmp_path: Path) -> None:
    """As the text says, and its checkpoint is one model."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *torchrun, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = load_files(tmp_path / "checkpoint")
    assert loaded.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert loaded["0.weight"].any()

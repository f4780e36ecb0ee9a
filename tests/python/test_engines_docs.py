"""The program and the claims of docs/engines.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from safetensors.plugins import vllm
from support import sharded

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "engines.md"


def test_the_program_runs(tmp_path):
    """Each rank loads its half of the experts, and all other tensors."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = [f"layers.{i}.experts.{j}.up.weight" for i in range(3) for j in range(8)]
    (tmp_path / "model").mkdir()
    sharded.write(tmp_path / "model", {name: torch.ones(2) for name in ["a", "b", *names]})
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "14 tensors on this rank, 24 weights of experts on all\n"


def test_the_versions():
    contracts = json.loads((ROOT / "tests" / "plugins" / "contracts.json").read_text())
    text = PAGE.read_text(encoding="utf-8")
    for name, contract in (("vLLM", contracts["vllm"]), ("sglang", contracts["sglang"])):
        assert f"{name} {contract['version']}" in text


def test_the_keys():
    """The table has the settings of the load format."""
    table = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    defaults = {field: getattr(vllm._Options(), field) for field, _ in table}
    assert defaults == {
        "weights": None,
        "concurrency": None,
        "budget_bytes": 1 << 30,
        "distributed": False,
    }
    assert dict(table)["budget_bytes"] == "1 GiB"

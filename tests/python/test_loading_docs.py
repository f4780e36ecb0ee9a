"""The Python programs in docs/loading.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from safetensors.torch import save_file
from support import file_builder, sharded

PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


def program_with(text: str) -> str:
    """Returns the program of the page that contains the text."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (program for program in programs if text in program)
    return str(found)


def test_the_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = 999_000
    header = b'{"weight":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (nbytes, nbytes)
    data = bytes(i % 251 for i in range(nbytes))
    member = file_builder.with_length(header.ljust(1_000_000 - nbytes - 8), data)
    assert len(member) == 1_000_000
    (tmp_path / "archive.bin").write_bytes(bytes(512) + member + b"more")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(program_with("class Member"), PAGE, "exec"), scope)
    assert bytes(scope["weight"].numpy()) == data


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs unchanged, and its variables have the values that the text says."""
    program = program_with("model_dir")
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

"""The Python programs in docs/loading.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from safetensors.torch import load_file
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
    """The program runs from an empty folder, and its variables have the values that it says."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(program_with("prefetch() as loader"), PAGE, "exec"), scope)
    assert len(list(tmp_path.glob("model_dir/*.safetensors"))) > 1
    tensors = scope["tensors"]
    assert isinstance(tensors, dict)
    assert set(tensors) == {f"layers.{i}.norm" for i in range(10)}
    assert scope["norms"] == {name: tensor.norm() for name, tensor in tensors.items()}
    linear = load_file("linear.safetensors")
    sharded.check(scope["model"].state_dict(), linear)
    assert torch.equal(scope["weight"], linear["weight"])

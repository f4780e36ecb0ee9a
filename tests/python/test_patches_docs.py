"""The Python programs in docs/patches.md, in their order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from safetensors import delta
from safetensors.torch import load_file, save_file
from support import console

PAGE = Path(__file__).parents[2] / "docs" / "patches.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(program):
    scope = {}
    exec(compile(program, PAGE, "exec"), scope)
    return scope


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_training_and_receiving(folder):
    """The receiver has the trainer's weights, by patches of a few hundred bytes."""
    trained = run(PROGRAMS[0])["trained"].state_dict()
    served = run(PROGRAMS[1])["served"].state_dict()
    assert all(torch.equal(served[name], trained[name]) for name in trained)
    paths = sorted(folder.glob("*.safetensors-patch"))
    assert len(paths) == 3
    assert all(path.stat().st_size < 2500 for path in paths)


def test_files_and_set_values(folder, capsys):
    tuned = run(PROGRAMS[2])["tuned"]
    assert load_file("again.safetensors").keys() == tuned.keys()
    assert Path("again.safetensors").read_bytes() == Path("tuned.safetensors").read_bytes()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c"]
    found = run(PROGRAMS[3])
    assert (found["indices"].tolist(), found["values"].tolist()) == ([0, 1], [1, 1])


def test_there_are_no_other_programs():
    assert len(PROGRAMS) == 4


def test_the_commands_run(folder):
    """Between files of two steps."""
    (block,) = console.BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for step in range(2):
        save_file({"a": torch.arange(100) == step}, f"step{step}.safetensors")
    first, second = console.run(block, folder)
    assert first[1] == 1, "diff says that the files differ"
    assert second == ("received.safetensors: step0.safetensors after the patch\n", 0)
    assert load_file("received.safetensors")["a"].nonzero().item() == 1


def test_no_loader_takes_a_patch_for_a_model(folder):
    """Folders with patches load as if they were not there."""
    save_file({"a": torch.ones(2)}, "model.safetensors")
    delta.diff({"a": torch.ones(2)}, {"a": torch.zeros(2)}, "1.safetensors-patch").close()
    from safetensors.torch import load_files

    assert load_files(folder).keys() == load_file("model.safetensors").keys() == {"a"}


@pytest.mark.slow
def test_the_example_runs():
    """A trainer and a receiver in two processes."""
    program = PAGE.parents[1] / "examples" / "rl_sync.py"
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bytes, ") == 5
    assert done.stdout.endswith("the receiver has the trainer's weights\n")

"""Saves are atomic: a file appears whole or not at all."""

import inspect
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import serialize_file
from support import children

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux for its failures"
)
both_modules = pytest.mark.parametrize("module", [for_torch, for_numpy], ids=["torch", "numpy"])


@both_modules
def test_saving_over_the_file_the_tensors_come_from(tmp_path, module):
    path = tmp_path / "self.safetensors"
    names = [f"t{i}" for i in range(20)]
    for_numpy.save_file({n: np.full(5000, i, "f4") for i, n in enumerate(names)}, path)
    first = module.load_file(path)
    for turn in range(3):
        loaded = module.load_file(path)
        # A new tensor in front moves all others to another place in the file.
        extra = np.full(777, turn, "f8")
        more = torch.from_numpy(extra) if module is for_torch else extra
        module.save_file({**loaded, f"x{turn}": more}, path)
        assert all(float(loaded[n][-1]) == i for i, n in enumerate(names))
    found = for_numpy.load_file(path)
    for i, name in enumerate(names):
        assert np.unique(found[name]).tolist() == [i]
        assert float(first[name][0]) == i
    assert [found[f"x{turn}"][0] for turn in range(3)] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "function", [for_torch.save_file, for_torch.save_model, for_numpy.save_file, serialize_file]
)
def test_options_are_keyword_only_arguments(function):
    parameters = inspect.signature(function).parameters
    assert {parameters[name].kind.name for name in ("fsync", "progress")} == {"KEYWORD_ONLY"}
    assert (parameters["fsync"].default, parameters["progress"].default) == (False, None)


@pytest.mark.parametrize("fsync", [True, False])
def test_fsync_of_tensors_that_python_prepares(tmp_path, monkeypatch, fsync):
    """A conjugated view is resolved in Python, and saved as TensorSpecs."""
    asked = []
    save = for_torch._core._save_specs_file

    def record(*args):
        asked.append(args[2].fsync)
        return save(*args)

    monkeypatch.setattr(for_torch._core, "_save_specs_file", record)
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    model = torch.nn.Module()
    model.register_buffer("a", tensor)
    for_torch.save_file({"a": tensor}, tmp_path / "one", fsync=fsync)
    for_torch.save_model(model, tmp_path / "two", fsync=fsync)
    assert asked == [fsync, fsync]
    for name in ("one", "two"):
        assert torch.equal(for_torch.load_file(tmp_path / name)["a"], tensor)


@pytest.mark.parametrize("fsync", [True, False])
def test_fsync_asks_the_system(tmp_path, fsync):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace to see system calls with")
    log = tmp_path / "log"
    prefix = [
        strace,
        "-f",
        "-y",
        "-o",
        log,
        "-e",
        "trace=fsync,fdatasync,rename,renameat,renameat2",
    ]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("tracing is not allowed here")
    script = """
        import sys
        import numpy as np
        from safetensors.numpy import save_file
        save_file({"a": np.arange(9)}, sys.argv[1], fsync=sys.argv[2] == "True")
    """
    folder = tmp_path / "folder"
    folder.mkdir()
    children.run(script, folder / "one", fsync, prefix=prefix)
    calls = [line for line in log.read_text().splitlines() if os.fspath(folder) in line]
    kinds = ["rename" if "rename" in call else "sync" for call in calls]
    # The data before the name, so that no name ever stands for missing data; then the name.
    assert kinds == (["sync", "rename", "sync"] if fsync else ["rename"])

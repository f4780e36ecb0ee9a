"""Saves are atomic: a file appears whole or not at all."""

import errno
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
from safetensors import SafetensorError, TensorSpec, serialize_file
from support import children
from support.save_failures import refused

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


def save_calls(path):
    """Returns calls of every function that writes a file."""
    array = np.zeros(4, "f4")
    spec = TensorSpec(dtype="float32", shape=[4], data_ptr=array.ctypes.data, data_len=16)
    return [
        lambda: for_numpy.save_file({"a": array}, path),
        lambda: for_torch.save_file({"a": torch.zeros(4)}, path),
        lambda: serialize_file({"a": spec}, path),
    ]


def test_no_such_folder(tmp_path):
    for call in save_calls(tmp_path / "none" / "file"):
        refused(call, FileNotFoundError, errno.ENOENT)
    (tmp_path / "file").write_bytes(b"x")
    for call in save_calls(tmp_path / "file" / "below"):
        refused(call, NotADirectoryError, errno.ENOTDIR)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@both_modules
def test_refused_tensors_leave_no_file(tmp_path, module):
    zeros = torch.zeros if module is for_torch else np.zeros
    with pytest.raises(SafetensorError):
        module.save_file({"__metadata__": zeros(2)}, tmp_path / "one")
    with pytest.raises(TypeError):
        module.save_file({"a": zeros(2)}, tmp_path / "one", metadata={"k": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function", [for_torch.save_file, for_torch.save_model, for_numpy.save_file, serialize_file]
)
def test_fsync_is_a_keyword_only_argument(function):
    fsync = inspect.signature(function).parameters["fsync"]
    assert fsync.kind is inspect.Parameter.KEYWORD_ONLY
    assert fsync.default is False


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

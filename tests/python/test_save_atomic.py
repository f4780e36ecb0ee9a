"""Saves are atomic: a file appears whole or not at all."""

import errno
import inspect
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import safetensors.numpy as for_numpy
import safetensors.torch as for_torch
from safetensors import SafetensorError, TensorSpec, serialize_file
from support import children, mounts
from support.save_failures import refused

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux for its failures"
)
CALLS = "fsync,fdatasync,rename,renameat,renameat2"
both_modules = pytest.mark.parametrize("module", [for_torch, for_numpy], ids=["torch", "numpy"])


def constant(number, count=1 << 20):
    """Returns tensors of one value, so that a mixture of two files is detected."""
    return {"a": np.full(count, number, "f4"), "b": np.full(count // 2, number, "i4")}


READER = """
import pathlib, sys, time
import numpy as np
path, stop, size = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
seen, reads = set(), 0
while not stop.exists() or reads < 5:
    data = path.read_bytes()
    assert len(data) == size, (len(data), size)
    values = np.frombuffer(data[-6 << 20:-2 << 20], "f4"), np.frombuffer(data[-2 << 20:], "i4")
    first = int(values[0][0])
    assert all((part == first).all() for part in values), "two files in one"
    seen.add(first)
    reads += 1
print(reads, len(seen))
"""


def start(script, *args):
    """Starts a child process and waits until it prints that it is ready."""
    child = subprocess.Popen(
        children.command(script, *args), cwd="/", stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_reader_sees_a_whole_file_always(tmp_path):
    path = tmp_path / "one.safetensors"
    for_numpy.save_file(constant(0), path)
    reader = start(READER, path, tmp_path / "stop", path.stat().st_size)
    deadline = time.monotonic() + 1.5
    saves = 0
    while time.monotonic() < deadline and reader.poll() is None:
        saves += 1
        for_numpy.save_file(constant(saves), path)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one.safetensors"]
    (tmp_path / "stop").touch()
    out, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0
    reads, seen = map(int, out.split())
    assert saves >= 5
    assert reads >= 5
    assert seen >= 2


def test_two_writers_of_one_name_leave_one_whole_file(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "one.safetensors"
    for_numpy.save_file(constant(9), path)
    writer = """
        import sys
        import numpy as np
        from safetensors.numpy import save_file
        number = int(sys.argv[2])
        print("ready", flush=True)
        for _ in range(25):
            save_file({"a": np.full(1 << 20, number, "f4"),
                       "b": np.full(1 << 19, number, "i4")}, sys.argv[1])
    """
    reader = start(READER, path, tmp_path / "stop", path.stat().st_size)
    writers = [start(writer, path, number) for number in (1, 2)]
    for child in writers:
        child.communicate(timeout=60)
        assert child.returncode == 0
    (tmp_path / "stop").touch()
    reader.communicate(timeout=60)
    assert reader.returncode == 0
    assert [entry.name for entry in folder.iterdir()] == ["one.safetensors"]
    loaded = for_numpy.load_file(path)
    assert np.unique(loaded["a"]).tolist() == np.unique(loaded["b"]).tolist()
    assert loaded["a"][0] in (1, 2)


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


def test_too_long_a_name(tmp_path):
    for call in save_calls(tmp_path / ("x" * 300)):
        refused(call, OSError, errno.ENAMETOOLONG)


@pytest.mark.parametrize("length", [255, 250])
def test_the_longest_name_is_saved(tmp_path, length):
    path = tmp_path / ("x" * length)
    for_numpy.save_file({"a": np.arange(3)}, path)
    assert for_numpy.load_file(path)["a"].tolist() == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_limit_on_the_size_of_files(tmp_path):
    script = """
        import os, resource, sys
        import numpy as np
        from support.save_failures import refused
        from safetensors.numpy import load_file, save_file
        folder = sys.argv[1]
        path = os.path.join(folder, "one")
        save_file({"a": np.arange(10)}, path)
        before = os.stat(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        for target in (path, os.path.join(folder, "new")):
            refused(lambda: save_file({"a": np.zeros(1 << 20)}, target), OSError, 27)
        assert os.listdir(folder) == ["one"], os.listdir(folder)
        assert os.stat(path) == before
        assert load_file(path)["a"].tolist() == list(range(10))
        save_file({"a": np.arange(5)}, path)
        assert load_file(path)["a"].tolist() == list(range(5))
        print("done")
    """
    assert errno.EFBIG == 27
    assert children.run(script, tmp_path).strip() == "done"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_full_disk(tmp_path, module):
    script = """
        import importlib, os, sys
        from support.save_failures import refused
        folder, word = sys.argv[1:]
        module = importlib.import_module("safetensors." + word)
        zeros = importlib.import_module(word).zeros
        path = os.path.join(folder, "one")
        module.save_file({"a": zeros(100_000)}, path)
        with open(path, "rb") as file:
            before = file.read()
        for target in (path, os.path.join(folder, "new")):
            for fsync in (False, True):
                save = lambda: module.save_file({"a": zeros(5_000_000)}, target, fsync=fsync)
                refused(save, OSError, 28)
                assert os.listdir(folder) == ["one"], os.listdir(folder)
        with open(path, "rb") as file:
            assert file.read() == before
        module.save_file({"a": zeros(100_001)}, path)
        assert len(module.load_file(path)["a"]) == 100_001
        print("done")
    """
    assert errno.ENOSPC == 28
    prefix = mounts.prefix('mount -t tmpfs -o size=4m none "$0"', tmp_path)
    assert children.run(script, tmp_path, module, prefix=prefix).strip() == "done"


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


def test_fsync_writes_the_same_file(tmp_path):
    array = np.arange(12, dtype="f4")
    spec = TensorSpec(dtype="float32", shape=[12], data_ptr=array.ctypes.data, data_len=48)
    tensor = torch.from_numpy(array)
    for fsync in (False, True):
        for_torch.save_file({"a": tensor}, tmp_path / f"t{fsync}", {"k": "v"}, fsync=fsync)
        for_numpy.save_file({"a": array}, tmp_path / f"n{fsync}", {"k": "v"}, fsync=fsync)
        serialize_file({"a": spec}, tmp_path / f"s{fsync}", {"k": "v"}, fsync=fsync)
    assert len({entry.read_bytes() for entry in tmp_path.iterdir()}) == 1
    assert len(list(tmp_path.iterdir())) == 6


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

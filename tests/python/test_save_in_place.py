"""Saving over a file that cannot be replaced, while this process has it mapped."""

import contextlib
import os
import pathlib

import numpy as np
import pytest

from support import children, file_builder, mounts

SCRIPT = """
import errno, importlib, os, sys
import numpy as np
from support.save_failures import refused
path, word = sys.argv[1:]
framework = importlib.import_module(word)
module = importlib.import_module("safetensors." + word)
inode = os.stat(path).st_ino
def all_are(tensor, value):
    return len(tensor) == 3_000_000 and float(tensor.min()) == float(tensor.max()) == value
"""


@pytest.fixture
def model(tmp_path):
    tensors = {f"t{i}": np.full(3_000_000, i, "f4") for i in range(3)}
    file_builder.write(tmp_path / "one", tensors)
    return tmp_path / "one"


def run(script, model, word):
    prefix = mounts.prefix('mount --bind "$0" "$0"', model)
    assert children.run(SCRIPT + script, model, word, prefix=prefix).strip() == "done"


@pytest.mark.slow
@pytest.mark.parametrize("word", ["numpy", "torch"])
def test_mapped_tensors_keep_their_values(model, word):
    script = """
held = module.load_file(path)
held["t1"][:] = 7
# Fewer bytes, more bytes, and the same tensors again.
for tensors in (
    {"small": framework.ones(3)},
    {"a": framework.ones(20_000_000), **held},
    {"t0": held["t0"]},
):
    module.save_file(tensors, path)
    found = module.load_file(path)
    assert sorted(found) == sorted(tensors)
    assert all((found[name] == tensors[name]).all() for name in tensors)
    assert all_are(held["t0"], 0) and all_are(held["t1"], 7) and all_are(held["t2"], 2)
    del found
assert os.stat(path).st_ino == inode
print("done")
"""
    run(script, model, word)


@pytest.mark.parametrize("word", ["numpy", "torch"])
def test_sums_are_of_the_file_that_was_overwritten(model, word):
    named = model.rename(model.with_name("one.safetensors"))
    script = """
held = module.load_file(path)
for tensors in ({"small": framework.ones(3)}, {"a": framework.ones(2_000_000), **held}):
    module.save_file(tensors, path, sums=True)
    assert os.stat(path).st_ino == inode
    assert sorted(module.load_file(path, verify=True)) == sorted(tensors)
    assert sorted(os.listdir(os.path.dirname(path))) == ["one.safetensors", "one.sums.json"]
module.save_file({"small": framework.ones(3)}, path)
assert os.listdir(os.path.dirname(path)) == ["one.safetensors"]
print("done")
"""
    run(script, named, word)


def test_an_open_file_still_reads_what_it_opened(model):
    script = """
from safetensors import safe_open
with safe_open(path, "np") as file:
    module.save_file({"small": np.ones(3)}, path)
    assert all_are(file.get_tensor("t2"), 2)
print("done")
"""
    run(script, model, "numpy")


@pytest.fixture
def group():
    """The folder of a control group with 150 MB of memory, which a shell command makes, and the
    command, which also moves the shell there."""
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    own = {line.split(":")[1]: line.split(":", 2)[2].rstrip("/") for line in groups}
    if "memory" in own:
        root, limit = f"/sys/fs/cgroup/memory{own['memory']}", "memory.limit_in_bytes"
    else:
        root, limit = f"/sys/fs/cgroup{own.get('', '')}", "memory.max"
    folder = f"{root}/safetensors-test-{os.getpid()}"
    make = (
        f"mkdir -p {folder} && echo 150000000 > {folder}/{limit} && echo $$ > {folder}/cgroup.procs"
    )
    yield make
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def test_a_control_group_without_memory_for_the_tensors(tmp_path, group):
    path = tmp_path / "large"
    header = b'{"t":{"dtype":"U8","shape":[400000000],"data_offsets":[0,400000000]}}'
    with path.open("wb") as file:
        file.write(file_builder.with_length(header))
        file.truncate(file.tell() + 400_000_000)  # without blocks
    script = """
held = module.load_file(path)["t"]
assert not held[::4096].any()
refused(lambda: module.save_file({"small": np.ones(3)}, path), OSError, errno.ENOMEM)
assert not held[::4096].any() and sorted(module.load_file(path)) == ["t"]
del held
module.save_file({"small": np.ones(3)}, path)
assert sorted(module.load_file(path)) == ["small"]
print("done")
"""
    prefix = mounts.prefix(f'mount --bind "$0" "$0" && {group}', path)
    assert children.run(SCRIPT + script, path, "numpy", prefix=prefix).strip() == "done"


def test_shared_memory_is_not_overwritten(model):
    script = """
with open(path, "rb") as file:
    before = file.read()
values = np.memmap(path, "f4", mode="r", offset=len(before) - 12_000_000)
refused(lambda: module.save_file({"small": np.ones(3)}, path), OSError, errno.EBUSY)
assert all_are(values, 2)
with open(path, "rb") as file:
    assert file.read() == before
del values
module.save_file({"small": np.ones(3)}, path)
assert sorted(module.load_file(path)) == ["small"]
assert os.listdir(os.path.dirname(path)) == ["one"]
print("done")
"""
    run(script, model, "numpy")

"""Saving over a file that cannot be replaced, while this process has it mapped."""

import numpy as np
import pytest

from support import children, file_builder, mounts

SCRIPT = """
import importlib, os, sys
import numpy as np
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

"""Models of more files than a process may have open."""

import subprocess
import sys

import pytest
import torch

from safetensors import SafetensorError
from safetensors.torch import load_files, save_file, stream_files
from support import sharded

pytest.importorskip("resource")

SHARDS = 200
USE = """
import resource, sys
import torch
from safetensors.torch import load_files, load_into, stream_files

directory, backend, way = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
if way == "load_files":
    found = load_files(directory, backend=backend)
elif way == "stream_files":
    found = dict(stream_files(directory, backend=backend))
elif way == "parts":
    plan = {f"layers.{i}.weight": slice(0, 1) for i in range(2, 400, 6)}
    parts = load_files(directory, backend=backend, plan=plan)
    assert all(part.shape == (1,) for part in parts.values())
    found = load_files(directory, backend=backend)
else:
    found = {name: torch.empty_like(each) for name, each in load_files(directory).items()}
    load_into(found, directory)
print(sum(int(each.to(torch.float64).sum()) for each in found.values() if not each.is_complex()))
"""


@pytest.fixture(scope="module")
def tensors():
    """The tensors of a model, two in each file."""
    return sharded.make(2 * SHARDS)


@pytest.fixture(scope="module")
def model(tensors, tmp_path_factory):
    """The model's directory."""
    directory = tmp_path_factory.mktemp("model")
    sharded.write(directory, tensors, SHARDS)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "backend"),
    [
        *((way, backend) for way in ("load_files", "stream_files") for backend in sharded.BACKENDS),
        ("parts", "pread"),
        ("load_into", "auto"),
    ],
)
def test_few_descriptors_are_enough(model, tensors, way, backend):
    """64 descriptors are enough for 200 files."""
    child = subprocess.run(
        [sys.executable, "-c", USE, model, backend, way], capture_output=True, text=True
    )
    assert child.stderr == ""
    real = [each for each in tensors.values() if not each.is_complex()]
    assert int(child.stdout) == sum(int(each.to(torch.float64).sum()) for each in real)


def test_all_headers_are_checked_before_the_first_tensor_is_read(tmp_path):
    """So is the last file's, whose descriptor is not kept open."""
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for number, path in enumerate(paths):
        save_file({str(number): torch.zeros(9)}, path)
    paths[2].write_bytes(b"damaged")
    calls = []
    with pytest.raises(SafetensorError, match="Error while deserializing header"):
        load_files(paths, backend="pread", progress=lambda *call: calls.append(call))
    assert calls == []


@pytest.mark.parametrize("backend", ["pread", "direct"])
def test_a_file_that_is_replaced_before_it_is_read(tmp_path, backend):
    """It raises, because the header differs from the one that was checked."""
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        save_file({path.name: torch.zeros(1000)}, path)
    stream = stream_files(paths, backend=backend)
    save_file({paths[1].name: torch.ones(1000)}, paths[1])
    with pytest.raises(SafetensorError, match="the file was replaced or written to") as caught:
        list(stream)
    assert str(paths[1]) in str(caught.value)

"""The backends "auto" and "direct", which bypasses the page cache."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import safetensors.numpy as for_numpy
from safetensors import SafetensorError, safe_open
from support import children, shims

BACKENDS = ["mmap", "pread", "auto", "direct"]
MB = 1 << 20


@pytest.fixture(scope="module")
def tensors():
    """Tensors smaller and larger than one read, none at the start of a page."""
    rng = np.random.default_rng(0)
    return {
        "tiny": rng.integers(0, 255, 3, dtype=np.uint8),
        "matrix": rng.standard_normal((300, 1001), dtype=np.float32),
        "large": rng.integers(0, 1 << 40, 1_200_001, dtype=np.int64),
        "none": np.zeros((0, 4), dtype=np.float16),
    }


@pytest.fixture(scope="module")
def path(tensors, tmp_path_factory):
    """A file of the tensors, flushed to the disk."""
    path = tmp_path_factory.mktemp("backends") / "model.safetensors"
    for_numpy.save_file(tensors, path, {"format": "np"}, fsync=True)
    return path


def drop_from_cache(path):
    """Asks the kernel to drop the file's pages from the page cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values(tensors, path, backend):
    """Every call gives the same values with every backend, with a warm and a cold page cache."""
    for _ in range(2):
        if sys.platform.startswith("linux"):
            drop_from_cache(path)
        with safe_open(path, "np", backend=backend) as f:
            for found in (
                {name: f.get_tensor(name) for name in f},
                f.get_tensors(),
                {name: f.get_slice(name)[...] for name in f},
                for_numpy.load_file(path, backend=backend),
            ):
                assert found.keys() == tensors.keys()
                for name, array in tensors.items():
                    np.testing.assert_array_equal(found[name], array)
            part = f.get_slice("matrix")
            np.testing.assert_array_equal(part[7:9, 5:900:3], tensors["matrix"][7:9, 5:900:3])
            np.testing.assert_array_equal(part[:, 3], tensors["matrix"][:, 3])


def test_an_unknown_word(path, upstream):
    """The error has upstream's text and lists the backends."""
    theirs = upstream.evaluate(
        "safetensors.safe_open(p, 'np', backend='disk')", p=str(path)
    ).failure
    with pytest.raises(SafetensorError) as caught:
        safe_open(path, "np", backend="disk")
    assert str(caught.value) == theirs.text + '; this package also has "auto" and "direct"'


LOAD = """
import os, sys
import safetensors.numpy as for_numpy
from safetensors import safe_open
from support.memory import bytes_read

path, backend = sys.argv[1:]
safe_open(path, "np")  # what the first use imports
with open(path, "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
before = bytes_read()
f = safe_open(path, "np", backend=backend)
part = f.get_slice("matrix")[0]
lazy = bytes_read() - before
f.get_tensors()
once = bytes_read() - before
f.get_tensors()
print(lazy, once, bytes_read() - before)
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """An environment in which every file seems to be on a network file system."""
    return shims.environment(tmp_path_factory.mktemp("shim"), shims.NETWORK)


def test_auto_reads_a_file_on_a_network(path, network):
    """load_file reads such a file once, with reads instead of page faults."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, check=True)
    if kind.stdout == b"overlayfs\n":
        pytest.skip("the substitute hides overlayfs, where cachestat counts nothing")
    size = os.path.getsize(path)
    lazy, once, twice = map(int, children.run(LOAD, path, "auto", env=network).split())
    assert lazy < MB, "a slice of a handle reads no more than the header"
    assert once > 0.9 * size
    assert twice - once < MB, "it is in the page cache by now"


def test_auto_maps_local_files(path):
    """So does "mmap", on any file system."""
    assert max(map(int, children.run(LOAD, path, "auto").split())) < MB


def test_mmap_stays_lazy_on_a_network(path, network):
    """The caller chose "mmap" by name."""
    assert max(map(int, children.run(LOAD, path, "mmap", env=network).split())) < MB


def test_direct_leaves_the_page_cache_alone(path, tmp_path):
    """Its reads do not add pages to the page cache."""
    pytest.importorskip("torch", reason="test_laziness needs torch")
    from test_laziness import resident

    if not sys.platform.startswith("linux"):
        pytest.skip("asks the Linux page cache")
    copy = tmp_path / "copy.safetensors"
    shutil.copy(path, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
    try:
        os.close(os.open(copy, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"this file system has no direct reads: {error}")
    drop_from_cache(copy)
    if resident(copy).mean() > 0.1:
        pytest.skip("this file system keeps its pages")
    for_numpy.load_file(copy, backend="direct")
    assert resident(copy).mean() < 0.5
    for_numpy.load_file(copy, backend="pread")
    assert resident(copy).mean() > 0.9


@pytest.mark.parametrize("backend", ["pread", "direct"])
def test_read_tensors_are_aligned_as_torchs_own(tmp_path, backend):
    """This holds for whole tensors and slices of any size and position."""
    torch = pytest.importorskip("torch")
    for_torch = pytest.importorskip("safetensors.torch")
    tensors = {f"{i:02}": torch.full((3 * i + 1,), i, dtype=torch.uint8) for i in range(20)}
    tensors["big"] = torch.zeros(5 << 20, dtype=torch.uint8)
    for_torch.save_file(tensors, tmp_path / "a")
    with safe_open(tmp_path / "a", "pt", backend=backend) as file:
        loaded = [*file.get_tensors().values(), *map(file.get_tensor, tensors)]
        loaded += [file.get_slice(name)[1:] for name in tensors]
    assert {tensor.data_ptr() % 64 for tensor in loaded} == {0}

"""Tensors and slices own what they need, and destroyed objects release it."""

import contextlib
import gc
import os
import sys

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file as load_torch
from support import file_builder

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
every_kind = pytest.mark.parametrize(
    ("framework", "backend"),
    [(framework, backend) for framework in ("pt", "np") for backend in ("mmap", "pread")],
)
both_frameworks = pytest.mark.parametrize("framework", ["pt", "np"])
both_backends = pytest.mark.parametrize("backend", ["mmap", "pread"])

A = np.arange(4096, dtype="f4").reshape(1024, 4)
B = np.arange(-500, 500, dtype="i8")


@pytest.fixture
def path(tmp_path):
    """A file of two tensors."""
    return str(file_builder.write(tmp_path / "two.safetensors", {"a": A, "b": B}))


def mapped(path):
    """Whether this process maps the file."""
    with open("/proc/self/maps") as maps:
        return os.path.realpath(path) in maps.read()


def descriptors(path):
    """Returns the number of descriptors of this process for the file."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        # One of them listdir itself used, and it is gone.
        with contextlib.suppress(OSError):
            count += os.path.samefile(f"/proc/self/fd/{number}", path)
    return count


def address(tensor):
    """Returns the address of an array's or tensor's data."""
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data


@every_kind
@pytest.mark.parametrize("end", ["close", "with", "exit", "del"])
def test_tensor_outlives_its_handle_and_its_file(path, framework, backend, end):
    file = safe_open(path, framework, backend=backend)
    if end == "with":
        with file:
            a, b = file.get_tensor("a"), file.get_tensor("b")
    else:
        a, b = file.get_tensor("a"), file.get_tensor("b")
    if end == "close":
        file.close()
    elif end == "exit":
        file.__exit__(None, None, None)
    del file
    gc.collect()
    os.unlink(path)
    np.testing.assert_array_equal(np.asarray(a), A)
    np.testing.assert_array_equal(np.asarray(b), B)
    a[3, 1] = -1
    assert float(a[3, 1]) == -1


@every_kind
def test_slice_outlives_its_handle_and_its_file(path, framework, backend):
    file = safe_open(path, framework, backend=backend)
    part = file.get_slice("a")
    file.close()
    del file
    gc.collect()
    os.unlink(path)
    row = part[7:9]
    del part
    gc.collect()
    np.testing.assert_array_equal(np.asarray(row), A[7:9])


@both_frameworks
def test_mmap_returns_the_same_pages_again(path, framework):
    with safe_open(path, framework) as file:
        first, second = file.get_tensor("a"), file.get_tensor("a")
        assert first is not second
        assert address(first) == address(second)
        first[5, 2] = -7
        assert float(second[5, 2]) == -7
        assert float(file.get_tensor("a")[5, 2]) == -7
        assert float(file.get_slice("a")[5:6][0, 2]) == -7


@both_frameworks
def test_pread_returns_a_private_copy(path, framework):
    with safe_open(path, framework, backend="pread") as file:
        first, second = file.get_tensor("a"), file.get_tensor("a")
        assert address(first) != address(second)
        first[:] = 0
        np.testing.assert_array_equal(np.asarray(second), A)


@both_backends
def test_torch_tensor_has_its_own_storage_of_exactly_its_bytes(path, backend):
    with safe_open(path, "pt", backend=backend) as file:
        tensors = [file.get_tensor(name) for name in ("a", "b", "a")]
    for tensor, nbytes in zip(tensors, (A.nbytes, B.nbytes, A.nbytes), strict=True):
        storage = tensor.untyped_storage()
        assert storage.nbytes() == nbytes
        assert storage.data_ptr() == tensor.data_ptr()
        assert tensor.storage_offset() == 0
        assert not tensor.requires_grad
    assert len({tensor.untyped_storage()._cdata for tensor in tensors}) == 3


@both_backends
def test_numpy_array_is_writable_and_plain(path, backend):
    with safe_open(path, "np", backend=backend) as file:
        array = file.get_tensor("a")
    assert type(array) is np.ndarray
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert array.flags.aligned


@linux
@both_frameworks
def test_close_releases_the_mapping_without_tensors(path, framework):
    file = safe_open(path, framework)
    tensor = file.get_tensor("a")
    assert mapped(path)
    file.close()
    assert mapped(path)
    view = tensor[10:20]
    del tensor
    gc.collect()
    assert mapped(path)
    np.testing.assert_array_equal(np.asarray(view), A[10:20])
    del view
    gc.collect()
    assert not mapped(path)


@linux
@every_kind
def test_close_releases_the_descriptor(path, framework, backend):
    file = safe_open(path, framework, backend=backend)
    tensor = file.get_tensor("a")
    file.close()
    assert descriptors(path) == 0
    del tensor
    gc.collect()
    assert not mapped(path)


@linux
@both_backends
def test_destroyed_handle_releases_the_file(path, backend):
    file = safe_open(path, "np", backend=backend)
    part = file.get_slice("a")
    assert mapped(path) or descriptors(path) > 0
    del file, part
    gc.collect()
    assert not mapped(path)
    assert descriptors(path) == 0


@linux
def test_failed_open_releases_the_file(tmp_path):
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(file_builder.to_bytes({"a": A})[:-1])
    for backend in ("mmap", "pread"):
        with pytest.raises(SafetensorError):
            safe_open(bad, "np", backend=backend)
    assert descriptors(bad) == 0
    assert not mapped(bad)


@pytest.fixture
def collector():
    """Restores the garbage collector's state after a test."""
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


def load_through_handle(path):
    """Returns all tensors by the handle's get_tensors."""
    with safe_open(path, "pt") as file:
        return file.get_tensors()


LOADERS = [load_torch, load_numpy, load_through_handle]


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("load", LOADERS, ids=["torch", "numpy", "get_tensors"])
def test_loading_leaves_the_garbage_collector_as_it_was(tmp_path, load, enabled):
    many = {f"t{i:05}": np.full(2, i, "f4") for i in range(3000)}
    path = str(file_builder.write(tmp_path / "many.safetensors", many))
    (gc.enable if enabled else gc.disable)()
    loaded = load(path)
    assert gc.isenabled() is enabled
    assert float(loaded["t02999"][1]) == 2999


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("load", LOADERS, ids=["torch", "numpy", "get_tensors"])
def test_an_error_while_loading_leaves_it_so_too(tmp_path, load, enabled):
    entries = {
        f"t{i:05}": {"dtype": "U8", "shape": [4], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(3000)
    }
    # No framework has this one, and it comes last.
    entries["t02999"] = {"dtype": "F6_E2M3", "shape": [16], "data_offsets": [11996, 12008]}
    path = tmp_path / "last.safetensors"
    path.write_bytes(file_builder.padded_header(entries) + bytes(12008))
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(SafetensorError):
        load(path)
    assert gc.isenabled() is enabled

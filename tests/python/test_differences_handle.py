"""Handles and arguments support more than upstream's: a test for each difference."""

import os
import pathlib

import pytest

import safetensors.numpy
from safetensors import SafetensorError, safe_open
from support import file_builder
from support.file_builder import raw
from support.hostile_headers import GOOD

TENSORS = {
    "z": raw("F32", (4, 6)),
    "a": raw("BF16", (2,)),
    "m": raw("F6_E2M3", (4,)),
    "e": raw("U8", (0, 3)),
}


@pytest.fixture
def path(tmp_path):
    """A file whose order by offset differs from that by name."""
    return str(file_builder.write(tmp_path / "handle.safetensors", TENSORS))


@pytest.fixture(params=["safe_open", "_safe_open_handle"])
def opened(request, path):
    """Returns a handle of either kind."""
    if request.param == "safe_open":
        yield safe_open(path, "np")
    else:
        with open(path, "rb") as file:
            yield safetensors._safe_open_handle(file, "np")


def test_in(opened, upstream, path):
    """`in` finds the names of tensors and nothing else."""
    assert "a" in opened
    assert "zz" not in opened
    assert "" not in opened
    assert "__metadata__" not in opened
    assert not upstream.evaluate("'a' in safe_open(path, 'np')", path=path).ok


def test_len(opened, upstream, path):
    """len() is the number of tensors."""
    assert len(opened) == 4
    assert not upstream.evaluate("len(safe_open(path, 'np'))", path=path).ok


def test_iteration(opened, upstream, path):
    """Iterating yields the names in the order of keys()."""
    assert list(opened) == opened.keys() == ["a", "e", "m", "z"]
    assert not upstream.evaluate("list(safe_open(path, 'np'))", path=path).ok


def test_a_handle_is_always_true(opened, tmp_path):
    """`if handle:` is true even if the length is 0."""
    empty = safe_open(file_builder.write(tmp_path / "empty.st", {}), "np")
    assert len(empty) == 0
    assert list(empty) == empty.keys() == empty.offset_keys() == []
    assert empty
    empty.close()
    assert empty
    assert opened


def test_handles_are_hashable_and_differ(opened, path):
    """Programs put handles into sets."""
    other = safe_open(path, "np")
    assert len({opened, other, opened}) == 2
    assert opened == opened
    assert opened != other


def test_close(opened, upstream, path):
    """`close` may be called twice; upstream has none."""
    assert opened.close() is None
    assert opened.close() is None
    assert opened.__exit__(None, None, None) is None
    assert not upstream.evaluate("safe_open(path, 'np').close()", path=path).ok


CALLS = {
    "keys": lambda handle: handle.keys(),
    "offset_keys": lambda handle: handle.offset_keys(),
    "metadata": lambda handle: handle.metadata(),
    "get_tensor": lambda handle: handle.get_tensor("z"),
    "get_tensor of a missing name": lambda handle: handle.get_tensor("zz"),
    "get_tensors": lambda handle: handle.get_tensors(),
    "get_slice": lambda handle: handle.get_slice("z"),
    "get_tensor_meta": lambda handle: handle.get_tensor_meta("z"),
    "in": lambda handle: "z" in handle,
    "len": len,
    "iteration": lambda handle: list(handle),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("how", ["close", "with"])
def test_use_after_close(opened, name, how):
    """The error has upstream's text."""
    if how == "close":
        opened.close()
    else:
        with opened as entered:
            assert entered is opened
    with pytest.raises(SafetensorError, match="^File is closed"):
        CALLS[name](opened)


def test_get_tensor_meta(opened):
    """It returns dtype, shape and offsets within the data, without reading data."""
    begin = 0
    for name, tensor in TENSORS.items():
        meta = opened.get_tensor_meta(name)
        end = begin + len(tensor.data)
        assert type(meta) is safetensors.TensorMeta
        assert (meta.dtype, meta.shape) == (tensor.dtype, list(tensor.shape))
        assert meta.data_offsets == (begin, end)
        assert [type(x) for x in (meta.dtype, meta.shape, meta.data_offsets)] == [str, list, tuple]
        begin = end
    with pytest.raises(SafetensorError, match="^File does not contain tensor zz"):
        opened.get_tensor_meta("zz")


def test_paths_of_every_kind(upstream, tmp_path):
    """Paths are str, bytes or os.PathLike of either, and may not be UTF-8."""

    class OfBytes:
        def __fspath__(self):
            return os.fsencode(path)

    for name in (b"plain.st", "é😀.st".encode(), b"not-utf-8-\xff\xfe.st"):
        path = os.fsdecode(os.path.join(os.fsencode(tmp_path), name))
        try:
            pathlib.Path(path).write_bytes(GOOD)
        except OSError as error:
            pytest.skip(f"this file system refuses the name: {error}")
        for form in (path, os.fsencode(path), pathlib.Path(path), OfBytes()):
            assert safe_open(form, "np").keys() == ["a"]
            assert list(safetensors.numpy.load_file(form)) == ["a"]
    assert not upstream.evaluate("safe_open(path, 'np')", path=os.fsencode(path)).ok


def test_load_takes_any_bytes_like_object(upstream):
    """Upstream accepts only bytes; test_serialize.py has the kinds of memory."""
    assert list(safetensors.numpy.load(bytearray(GOOD))) == ["a"]
    assert upstream.run("load", bytearray(GOOD), "np").failure.kind == "builtins.TypeError"


def test_devices_of_every_kind(upstream, tmp_path):
    """torch.device objects, "cpu:0" and "meta" are accepted; upstream accepts a fixed list."""
    torch = pytest.importorskip("torch")
    import safetensors.torch

    path = str(file_builder.write(tmp_path / "device.st", {"a": raw("BF16", (2, 3))}))
    for device in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu:0"), None):
        with safe_open(path, "pt", device) as handle:
            assert handle.get_tensor("a").device.type == "cpu"
            assert handle.get_slice("a")[:1].device.type == "cpu"
    for device in ("meta", torch.device("meta")):
        for backend in ("mmap", "pread"):
            with safe_open(path, "pt", device, backend=backend) as handle:
                found = [
                    handle.get_tensor("a"),
                    handle.get_slice("a")[:],
                    handle.get_tensors()["a"],
                ]
        found.append(safetensors.torch.load_file(path, device)["a"])
        for tensor in found:
            assert (tensor.device.type, tensor.dtype) == ("meta", torch.bfloat16)
            assert tensor.shape == (2, 3)
    assert not upstream.evaluate("safe_open(path, 'pt', torch.device('cpu'))", path=path).ok
    assert not upstream.evaluate("safe_open(path, 'pt', 'meta')", path=path).ok
    assert not upstream.evaluate("safe_open(path, 'pt', 'cpu:0')", path=path).ok

"""stream_files: all tensors one by one, and files closed when it is left."""

import os
import weakref
from contextlib import closing

import pytest

from safetensors import SafetensorError, _core
from safetensors.torch import load_file, load_files, stream_files
from support import sharded
from support.fake_device import FakeDevice

BACKENDS = sharded.BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_stream(model, tensors, backend):
    """All tensors once, those of a file together."""
    sharded.check(dict(stream_files(model, backend=backend)), tensors)
    names = [name for name, _ in stream_files(model, backend=backend)]
    assert len(names) == len(tensors)
    begin = 0
    for path in sharded.shards_of(model):
        wanted = load_file(path).keys()
        assert set(names[begin : begin + len(wanted)]) == wanted
        begin += len(wanted)


@pytest.mark.parametrize("budget", [None, 1, 5000])
@pytest.mark.parametrize("device", ["xpu:0", "cuda:0", "meta"])
def test_devices_without_an_engine(model, tensors, device, budget, monkeypatch):
    """A few tensors at a time, as the budget has it; CUDA too, where there is no driver."""
    if device == "cuda:0" and _core._has_cuda_driver():
        pytest.skip("CUDA has an engine here")
    if device != "meta":
        FakeDevice(monkeypatch)
    batches = []
    engine = _core._load_groups

    def record(groups):
        ((_, requests),) = groups
        batches.append([tensors[name].nbytes for _, name, _, _ in requests])
        return engine(groups)

    monkeypatch.setattr(_core, "_load_groups", record)
    found = dict(stream_files(model, device, budget_bytes=budget))
    assert found.keys() == tensors.keys()
    if device == "meta":
        assert all(tensor.is_meta for tensor in found.values())
    else:
        sharded.check(found, tensors)
    assert all(len(batch) == 1 or sum(batch) <= (budget or sum(batch)) for batch in batches)
    assert (len(batches) == 3) == (budget is None)


def test_handed_out_tensors_are_let_go(model, monkeypatch):
    """Also by the way for devices without an engine."""
    FakeDevice(monkeypatch)
    stream = stream_files(model, "xpu:0")
    _, tensor = next(stream)
    kept = weakref.ref(tensor)
    del tensor
    assert kept() is None
    stream.close()


def test_stream_of_some(model, tensors):
    """By keys, which are checked before the first tensor is asked for."""
    some = list(tensors)[1::4]
    wanted = {name: tensors[name] for name in some}
    sharded.check(dict(stream_files(model, keys=some)), wanted)
    assert list(stream_files(model, keys=[])) == []
    with pytest.raises(SafetensorError, match="nowhere"):
        stream_files(model, keys=["nowhere"])
    with pytest.raises(SafetensorError, match="is invalid"):
        stream_files(model, "nonsense")


def test_stream_with_a_budget(model, tensors):
    """However small: one tensor at a time then."""
    for budget in (1, 1000, 1 << 20):
        found = dict(stream_files(model, backend="pread", budget_bytes=budget))
        sharded.check(found, tensors)


def test_a_stream_that_is_closed(model):
    """Gives no more, and what it gave stays."""
    with closing(stream_files(model, backend="pread")) as stream:
        name, tensor = next(stream)
        wanted = load_files(model, keys=[name])[name]
    assert sharded.same(tensor, wanted)
    assert list(stream) == []


def open_files():
    """How many files this process has open or mapped, of the names of models."""
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in listed("/proc/self/fd")]
    return sum(name.endswith(".safetensors") for name in names)


def listed(directory):
    """Entries that are still there."""
    return [fd for fd in os.listdir(directory) if os.path.lexists(f"{directory}/{fd}")]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_are_closed(model):
    """After success, errors, and iterators that are left."""
    before = open_files()
    for _ in range(3):
        load_files(model, backend="pread")
        with pytest.raises(SafetensorError):
            load_files(model, keys=["nowhere"], backend="pread")
        for _ in stream_files(model, backend="pread"):
            break
        stream_files(model, backend="pread")
    assert open_files() == before

"""stream_files yields tensors one by one and closes the files when it ends."""

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
    """All tensors come once, those of a file together."""
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
    """A few tensors at a time are loaded, within the budget; also to CUDA without a driver."""
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


def test_the_stream_keeps_no_tensor(model, monkeypatch):
    """The stream keeps no reference, also for devices without an engine."""
    FakeDevice(monkeypatch)
    stream = stream_files(model, "xpu:0")
    _, tensor = next(stream)
    kept = weakref.ref(tensor)
    del tensor
    assert kept() is None
    stream.close()


def test_stream_of_some(model, tensors):
    """keys selects tensors, and is checked before the first is loaded."""
    some = list(tensors)[1::4]
    wanted = {name: tensors[name] for name in some}
    sharded.check(dict(stream_files(model, keys=some)), wanted)
    assert list(stream_files(model, keys=[])) == []
    with pytest.raises(SafetensorError, match="nowhere"):
        stream_files(model, keys=["nowhere"])
    with pytest.raises(SafetensorError, match="is invalid"):
        stream_files(model, "nonsense")


def test_stream_with_a_budget(model, tensors):
    """With any budget, at least one tensor is loaded."""
    for budget in (1, 1000, 1 << 20):
        found = dict(stream_files(model, backend="pread", budget_bytes=budget))
        sharded.check(found, tensors)


def test_a_stream_that_is_closed(model):
    """A closed stream ends, and its tensors stay valid."""
    with closing(stream_files(model, backend="pread")) as stream:
        name, tensor = next(stream)
        wanted = load_files(model, keys=[name])[name]
    assert sharded.same(tensor, wanted)
    assert list(stream) == []


def open_files():
    """Returns how many files of models this process has open or mapped."""
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in listed("/proc/self/fd")]
    return sum(name.endswith(".safetensors") for name in names)


def listed(directory):
    """Returns the entries that still exist."""
    return [fd for fd in os.listdir(directory) if os.path.lexists(f"{directory}/{fd}")]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_are_closed(model):
    """They are closed after success, errors, and abandoned iterators."""
    before = open_files()
    for _ in range(3):
        load_files(model, backend="pread")
        with pytest.raises(SafetensorError):
            load_files(model, keys=["nowhere"], backend="pread")
        for _ in stream_files(model, backend="pread"):
            break
        stream_files(model, backend="pread")
    assert open_files() == before

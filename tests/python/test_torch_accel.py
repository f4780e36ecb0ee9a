"""The functions of torch that loads call."""

from types import SimpleNamespace

import pytest
import torch

from safetensors._torch import devices, transfer
from support import sharded
from support.fake_device import load, requests_for, tensors_in_order

MB = 1 << 20


def test_pinned_memory_is_asked_for(monkeypatch):
    """torch's pin_memory is used, on the CPU with any default device."""
    asked = []
    monkeypatch.setattr(torch, "empty", lambda *args, **options: asked.append((args, options)))
    transfer.staging(123)
    assert asked == [((123,), {"dtype": torch.uint8, "device": "cpu", "pin_memory": True})]


def test_events_of_devices_that_torch_event_does_not_know(monkeypatch):
    """The device's own event class is used; if that fails, none."""
    assert transfer.event(devices.Device("npu")) is None
    made = []

    class Event:
        def record(self):
            made.append(self)

    monkeypatch.setattr(torch, "npu", SimpleNamespace(Event=Event), raising=False)
    assert transfer.event(devices.Device("npu")) is made[0]


def test_the_current_device(monkeypatch):
    """The device's own module sets it; without one, nothing is done."""
    log = []
    monkeypatch.setattr(torch, "npu", SimpleNamespace(device=log.append), raising=False)
    transfer.current(devices.Device("npu", 3))
    assert log == [3]
    with transfer.current(devices.Device("absent")):
        pass


@pytest.mark.parametrize(
    ("given", "name"),
    [("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("xpu", "xpu:0"),
     ("mps", "mps"), ("mps:0", "mps"), ("meta", "meta"), (torch.device("cuda"), "cuda:0"),
     (torch.device("cpu"), "cpu")],
)  # fmt: skip
def test_names_of_devices(given, name):
    """Each device has one name."""
    assert devices.device_of(given).name == name


def test_the_current_stream(monkeypatch):
    """torch's fast function is used if it exists, else its stream object."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda i: 100 + i, raising=False)
    assert transfer.raw_stream(1) == 101
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    stream = lambda index: SimpleNamespace(cuda_stream=200 + index)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    assert transfer.raw_stream(1) == 201


def test_capturing(monkeypatch):
    """torch is not asked before CUDA is initialised, because that would raise."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: 1 / 0)
    assert transfer.is_capturing() is False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert transfer.is_capturing() is True


@pytest.fixture
def cuda(monkeypatch):
    """Replaces the properties of a CUDA device for `warm`, and records allocations."""
    figures = SimpleNamespace(
        reserved=0, allocated=0, free=10 << 30, backend="native", settings="", made=[]
    )
    for function, value in {
        "memory_reserved": lambda index: figures.reserved,
        "memory_allocated": lambda index: figures.allocated,
        "mem_get_info": lambda index: (figures.free, 80 << 30),
        "get_allocator_backend": lambda: figures.backend,
    }.items():
        monkeypatch.setattr(torch.cuda, function, value)
    monkeypatch.setattr(
        torch._C, "_accelerator_getAllocatorSettings", lambda: figures.settings, raising=False
    )
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)

    def make(nbytes, *, dtype, device):
        assert dtype == torch.uint8
        figures.made.append((nbytes, device))

    monkeypatch.setattr(transfer, "empty", make)
    return figures


def test_warm_makes_one_segment(cuda):
    """The segment is slightly larger than requested, on that device."""
    transfer.warm(64 * MB, 2)
    assert cuda.made == [(66 * MB, "cuda:2")]


WARM_NOT = {
    "too little": {"nbytes": 64 * MB - 1},
    "half is there": {"reserved": 150 * MB, "allocated": 100 * MB},
    "not free": {"free": 355 * MB},
    "another allocator": {"backend": "cudaMallocAsync"},
    "growing segments": {"settings": "expandable_segments:True"},
    "growing among others": {"settings": "max_split_size_mb:512, expandable_segments: True"},
}


@pytest.mark.parametrize("case", WARM_NOT)
def test_when_warm_does_nothing(cuda, case):
    """Each reason alone suffices; without it the segment is allocated."""
    figures = {"nbytes": 100 * MB, "reserved": 149 * MB, "allocated": 100 * MB, "free": 356 * MB}
    for name, value in (figures | WARM_NOT[case]).items():
        setattr(cuda, name, value)
    transfer.warm(cuda.nbytes, 0)
    assert cuda.made == []
    vars(cuda).update(figures, backend="native", settings="expandable_segments:False")
    transfer.warm(cuda.nbytes, 0)
    assert cuda.made == [(102 * MB, "cuda:0")]


def test_warm_by_the_environment(cuda, monkeypatch):
    """The environment is read if torch does not expose its settings."""
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    transfer.warm(100 * MB, 0)
    assert cuda.made == []
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    transfer.warm(100 * MB, 0)
    assert len(cuda.made) == 1


def test_warm_never_raises(cuda, monkeypatch):
    """Errors of torch are ignored, because this is only for speed."""

    def full(*args, **options):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(transfer, "empty", full)
    transfer.warm(100 * MB, 0)
    monkeypatch.undo()
    transfer.warm(100 * MB, 10_000)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_real_device(opened, mixed_tensors, monkeypatch):
    """With torch's own events, pinned memory and copies."""
    monkeypatch.setattr(transfer, "_STAGING_NBYTES", 4096)
    found = load(requests_for(opened), "cuda:0")
    assert all(tensor.is_cuda for tensor in found.values())
    sharded.check({n: t.cpu() for n, t in found.items()}, tensors_in_order(opened, mixed_tensors))
    assert transfer.staging(10).is_pinned()
    assert isinstance(transfer.raw_stream(0), int)
    assert not transfer.is_capturing()

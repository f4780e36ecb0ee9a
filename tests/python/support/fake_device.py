"""A device for tests of the generic copier: its memory is the CPU's, and it works late."""

import threading
from contextlib import nullcontext

import torch

from safetensors import SafetensorError, _core
from safetensors._torch import transfer
from support import sharded


class FakeDevice:
    """Replaces the copier's hooks. A copy is done when an event recorded after it is waited for.

    If the source is overwritten before that, the copy is wrong, as on a real device.
    """

    def __init__(self, monkeypatch, has_events=True):
        self.log = []
        self.made = []
        self._queues = threading.local()
        self._has_events = has_events
        for hook in ("empty", "event", "staging", "copy", "current"):
            monkeypatch.setattr(transfer, hook, getattr(self, hook))

    @property
    def queue(self):
        """This thread's copies that are not done."""
        if not hasattr(self._queues, "copies"):
            self._queues.copies = []
        return self._queues.copies

    def log_of(self, kind):
        """Returns the log's entries of one kind."""
        return [entry for entry in self.log if entry[0] == kind]

    def empty(self, shape, *, dtype, device):
        """Returns memory with arbitrary contents."""
        self.made.append(device)
        tensor = torch.empty(shape, dtype=dtype)
        tensor.view(-1).view(torch.uint8).fill_(0xAB)
        return tensor

    def staging(self, nbytes):
        """Returns staging memory with arbitrary contents."""
        self.log.append(("staging", nbytes))
        return torch.full((nbytes,), 0xCD, dtype=torch.uint8)

    def copy(self, to, source, non_blocking):
        """Queues a copy, or does it after all earlier ones if it is blocking."""
        self.log.append(("copy", source.nbytes))
        self.queue.append(lambda: to.copy_(source))
        if not non_blocking:
            self.run(len(self.queue))

    def run(self, count):
        """Does the first `count` queued copies."""
        for copy in self.queue[:count]:
            copy()
        del self.queue[:count]

    def event(self, device):
        """Returns an event, or None if the device has none."""
        return FakeEvent(self) if self._has_events else None

    def current(self, device):
        """Logs the device that becomes current."""
        self.log.append(("current", device.name))
        return nullcontext()


class FakeEvent:
    """Remembers the last copy that was started before it."""

    def __init__(self, device):
        self._device = device
        self._last = None

    def record(self):
        """Records the event."""
        self._device.log.append(("record",))
        self._last = self._device.queue[-1] if self._device.queue else None

    def synchronize(self):
        """Does all copies up to the recorded one."""
        self._device.log.append(("synchronize",))
        if self._last in self._device.queue:
            self._device.run(self._device.queue.index(self._last) + 1)


def make_tensors():
    """Returns small tensors, and some that exceed a slot of 4096 bytes."""
    large = {
        "rows": torch.arange(3000).reshape(300, 10),
        "wide": torch.arange(12_000.0).reshape(2, 2, 3000),
        "flat": torch.arange(5001).to(torch.int16),
        "single": torch.arange(2000.0).reshape(1, 1, 2000, 1),
    }
    return sharded.make(12) | large


def fail_reading(monkeypatch, after):
    """Makes the read fail that follows `after` reads."""
    read, left = _core._read_request, iter(range(after))

    def failing(*args):
        if next(left, None) is None:
            raise SafetensorError("the disk is gone")
        read(*args)

    monkeypatch.setattr(_core, "_read_request", failing)


def requests_for(opened, parts=None):
    """Returns requests without destinations: for all tensors, or for parts of some."""
    names = opened.offset_keys()
    parts = dict.fromkeys(names) if parts is None else parts
    return [(opened, name, part, None) for name, part in parts.items()]


def load(requests, device, progress=None):
    """Loads the requests and returns the tensors by name."""
    kind, _, index = device.partition(":")
    target = transfer.Device(kind, int(index or 0))
    found = transfer.copy_requests(requests, target, progress)
    return {request[1]: tensor for request, tensor in zip(requests, found, strict=True)}


def tensors_in_order(opened, tensors):
    """Returns the tensors in the order of `load`."""
    return {name: tensors[name] for name in opened.offset_keys()}

"""A device for tests of the generic copier: its memory is the CPU's, its work is done late."""

import threading
from contextlib import nullcontext

import torch

from safetensors import SafetensorError, _core
from safetensors._torch import transfer
from support import sharded


class FakeDevice:
    """Replaces the copier's hooks. A copy is done when an event recorded after it is waited for.

    What is copied from memory that was filled anew before that is wrong, as on a real device.
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
        """Copies of this thread that are not done."""
        if not hasattr(self._queues, "copies"):
            self._queues.copies = []
        return self._queues.copies

    def log_of(self, kind):
        """What was done of one kind."""
        return [entry for entry in self.log if entry[0] == kind]

    def empty(self, shape, *, dtype, device):
        """Memory with something in it."""
        self.made.append(device)
        tensor = torch.empty(shape, dtype=dtype)
        tensor.view(-1).view(torch.uint8).fill_(0xAB)
        return tensor

    def staging(self, nbytes):
        """Likewise."""
        self.log.append(("staging", nbytes))
        return torch.full((nbytes,), 0xCD, dtype=torch.uint8)

    def copy(self, to, source, non_blocking):
        """Done at once if it has to be, after what was begun before."""
        self.log.append(("copy", source.nbytes))
        self.queue.append(lambda: to.copy_(source))
        if not non_blocking:
            self.run(len(self.queue))

    def run(self, count):
        """Does the first of what is left to do."""
        for copy in self.queue[:count]:
            copy()
        del self.queue[:count]

    def event(self, device):
        """An event, or nothing."""
        return FakeEvent(self) if self._has_events else None

    def current(self, device):
        """Tells which device became the current one."""
        self.log.append(("current", device.name))
        return nullcontext()


class FakeEvent:
    """Remembers the last copy that was begun before it."""

    def __init__(self, device):
        self._device = device
        self._last = None

    def record(self):
        """Now."""
        self._device.log.append(("record",))
        self._last = self._device.queue[-1] if self._device.queue else None

    def synchronize(self):
        """Does all up to the copy."""
        self._device.log.append(("synchronize",))
        if self._last in self._device.queue:
            self._device.run(self._device.queue.index(self._last) + 1)


def make_tensors():
    """Small ones, and some that no slot of 4096 bytes holds."""
    large = {
        "rows": torch.arange(3000).reshape(300, 10),
        "wide": torch.arange(12_000.0).reshape(2, 2, 3000),
        "flat": torch.arange(5001).to(torch.int16),
        "single": torch.arange(2000.0).reshape(1, 1, 2000, 1),
    }
    return sharded.make(12) | large


def fail_reading(monkeypatch, after):
    """Makes the read after so many fail."""
    read, left = _core._read_request, iter(range(after))

    def failing(*args):
        if next(left, None) is None:
            raise SafetensorError("the disk is gone")
        read(*args)

    monkeypatch.setattr(_core, "_read_request", failing)


def requests_for(opened, parts=None):
    """Requests for tensors that are to be made; all, or parts of some."""
    names = opened.offset_keys()
    parts = dict.fromkeys(names) if parts is None else parts
    return [(opened, name, part, None) for name, part in parts.items()]


def load(requests, device, progress=None):
    """Loads, by name."""
    found = transfer.copy_requests(requests, device, progress)
    return {request[1]: tensor for request, tensor in zip(requests, found, strict=True)}


def tensors_in_order(opened, tensors):
    """As `load` gives them."""
    return {name: tensors[name] for name in opened.offset_keys()}

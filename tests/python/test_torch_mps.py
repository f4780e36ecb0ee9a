"""The copier for MPS, whose memory the CPU can access, with a fake device."""

import pytest
import torch

from safetensors import SafetensorError, _core
from support import sharded
from support.fake_device import (
    FakeDevice,
    fail_reading,
    load,
    requests_for,
    tensors_in_order,
)


@pytest.fixture
def mps(monkeypatch):
    """A fake MPS device with the CPU's memory; the fixture is the log of its calls."""
    log = []

    def alias(storage):
        log.append("alias")
        return storage

    monkeypatch.setattr(torch.mps, "_host_alias_storage", alias, raising=False)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: log.append("synchronize"))
    FakeDevice(monkeypatch)
    read = _core._read_request
    monkeypatch.setattr(_core, "_read_request", lambda *args: (log.append("read"), read(*args)))
    return log


def test_mps_is_read_into(opened, mixed_tensors, mps):
    """Bytes are read in place between two waits for the device."""
    sharded.check(load(requests_for(opened), "mps"), tensors_in_order(opened, mixed_tensors))
    steps = ["alias", "read"] * sum(tensor.nbytes != 0 for tensor in mixed_tensors.values())
    assert mps == ["synchronize", *steps, "synchronize"]


def test_mps_tensors_inside_a_storage(opened, mixed_tensors, mps):
    """Tensors that start inside a storage are read at their offset."""
    memory = torch.zeros(302, 10, dtype=torch.int64)
    load([(opened, "rows", None, memory[1:301])], "mps:0")
    assert sharded.same(memory[1:301], mixed_tensors["rows"])
    assert memory[0].tolist() == memory[301].tolist() == [0] * 10


def test_mps_raises_after_the_last_wait(opened, mps, monkeypatch):
    """The last wait is not skipped."""
    fail_reading(monkeypatch, 2)
    with pytest.raises(SafetensorError, match="the disk is gone"):
        load(requests_for(opened), "mps")
    assert mps[-1] == "synchronize"
    assert mps.count("synchronize") == 2


@pytest.mark.parametrize("has_alias", [True, False])
def test_mps_memory_that_the_cpu_cannot_access(opened, mixed_tensors, monkeypatch, mps, has_alias):
    """If torch does not expose the memory, bytes are copied."""

    def refuse(storage):
        raise RuntimeError("private memory")

    monkeypatch.setattr(torch.mps, "_host_alias_storage", refuse)
    if not has_alias:
        monkeypatch.delattr(torch.mps, "_host_alias_storage")
    sharded.check(load(requests_for(opened), "mps"), tensors_in_order(opened, mixed_tensors))
    assert mps.count("synchronize") == (2 if has_alias else 0)

"""The copier for devices without an engine, by a fake device."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safetensors import SafetensorError, _core, safe_open
from safetensors._torch import transfer
from safetensors._torch.pieces import pieces_of
from support import sharded
from support.fake_device import (
    FakeDevice,
    FakeEvent,
    fail_reading,
    load,
    requests_for,
    tensors_in_order,
)
from support.threads import together

DEVICES = ["cuda:0", "cuda:1", "xpu:0", "npu:1", "musa:0"]


@pytest.fixture
def device(monkeypatch):
    """A fake device with small slots."""
    monkeypatch.setattr(transfer, "_STAGING_NBYTES", 4096)
    return FakeDevice(monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    """The sizes of reads, in order."""
    sizes = []
    read = _core._read_request

    def record(handle, name, index, address, nbytes):
        sizes.append(nbytes)
        read(handle, name, index, address, nbytes)

    monkeypatch.setattr(_core, "_read_request", record)
    return sizes


@pytest.mark.parametrize("name", DEVICES)
def test_values(opened, mixed_tensors, device, name):
    """Values are right on each device; memory is allocated on it while it is current."""
    sharded.check(
        load(requests_for(opened), name), {n: mixed_tensors[n] for n in opened.offset_keys()}
    )
    assert device.queue == []
    assert set(device.made) == {name}
    assert ("current", name) in device.log


def test_no_piece_is_larger_than_a_slot(opened, device, reads):
    """Large tensors are copied in pieces, small ones together."""
    load(requests_for(opened), "xpu:0")
    assert max(reads) <= 4096
    assert [size for kind, size in device.log_of("staging")] == [4096, 4096]
    total = sum(reads)
    waits = sum(entry[0] == "synchronize" for entry in device.log)
    assert waits <= 2 * (total // 4096 + 2)
    assert len(reads) > waits


def test_reading_overlaps_copying(opened, device):
    """Both slots are filled before the first copy is waited for."""
    load(requests_for(opened, {"rows": None}), "xpu:0")
    before = device.log[: device.log.index(("synchronize",))]
    copied = sum(entry[1] for entry in before if entry[0] == "copy")
    assert 4096 < copied <= 8192


def test_a_missing_wait_is_caught(opened, mixed_tensors, device, monkeypatch):
    """The fake device detects a copier that does not wait."""
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self: None)
    found = load(requests_for(opened), "xpu:0")
    device.run(len(device.queue))
    assert [name for name in mixed_tensors if not sharded.same(found[name], mixed_tensors[name])]


PARTS = {
    "rows": [slice(3, 250), slice(None, None, 7), -1, (slice(10, 290, 2), slice(1, 9)), (5, 3)],
    "wide": [1, (slice(None), 1), (0, slice(None), slice(5, 2900, 3)), (slice(0, 0),)],
    "flat": [slice(1, 5000), slice(4000, None), slice(0, 5000, 5), 17],
    "single": [0, (0, 0, slice(1, None)), (..., 0), (None, 0), (slice(None), None, 0)],
}


@pytest.mark.parametrize(("name", "part"), [(n, part) for n in PARTS for part in PARTS[n]])
def test_parts(opened, mixed_tensors, device, name, part):
    """Parts may be larger than a slot or not."""
    found = load(requests_for(opened, {name: part}), "npu:0")[name]
    assert sharded.same(found, mixed_tensors[name][part])


def test_an_ellipsis_and_new_axes_are_split(opened, mixed_tensors, device, reads):
    """As an index of slices is."""
    part = (None, ..., slice(1, None))
    found = load(requests_for(opened, {"wide": part}), "xpu:0")
    assert sharded.same(found["wide"], mixed_tensors["wide"][part])
    assert max(reads) <= 4096


def test_a_part_that_is_not_split_is_one_read(opened, mixed_tensors, device, reads):
    """A part with a list of ranges that is larger than a slot has its own memory."""
    part = (..., [slice(0, 1500), slice(1501, 3000)])
    found = load(requests_for(opened, {"flat": None, "wide": part}), "xpu:0")
    columns = [i for i in range(3000) if i != 1500]
    assert sharded.same(found["wide"], mixed_tensors["wide"][..., columns])
    assert sharded.same(found["flat"], mixed_tensors["flat"])
    assert max(reads) == found["wide"].nbytes


@st.composite
def shapes_and_parts(draw):
    """Draws a shape and an index of ints and slices for it."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    part = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        begin = draw(st.integers(0, size - 1))
        end = draw(st.integers(begin + 1, size))
        step = draw(st.integers(1, 4))
        part.append(draw(st.sampled_from([begin, begin - size, slice(begin, end, step)])))
    return shape, tuple(part) if part else None


@given(shapes_and_parts(), st.integers(8, 2000))
def test_pieces_make_up_the_part(case, limit):
    """Pieces are in the order of the bytes, and none is larger than the limit."""
    shape, part = case
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    wanted = (tensor if part is None else tensor[part]).reshape(-1)
    meta = SimpleNamespace(dtype="I64", shape=shape)
    pieces = list(pieces_of(meta, part, wanted.nbytes, limit))
    found = [(tensor if index is None else tensor[index]).reshape(-1) for index, _ in pieces]
    assert torch.equal(torch.cat(found), wanted)
    assert [piece.nbytes for piece in found] == [nbytes for _, nbytes in pieces]
    assert all(nbytes <= limit for _, nbytes in pieces)


def test_packed_pairs(tmp_path, device):
    """F4 tensors, two values to a byte, fit into slots or are larger."""
    header = b'{"a":{"dtype":"F4","shape":[100,128],"data_offsets":[0,6400]},'
    header += b'"b":{"dtype":"F4","shape":[2,6],"data_offsets":[6400,6406]}}'
    data = bytes(i % 251 for i in range(6406))
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    with safe_open(path, "pt") as f:
        found = load(requests_for(f), "xpu:0")
    assert found["a"].shape == (100, 64)
    assert sharded.bytes_of(found["a"]) + sharded.bytes_of(found["b"]) == data


def test_given_destinations(opened, mixed_tensors, device):
    """They are filled and returned, also if they require gradients or start inside a storage."""
    given = {name: torch.ones_like(tensor) for name, tensor in mixed_tensors.items()}
    given["rows"] = torch.ones(400, 10, dtype=torch.int64)[50:350]
    given["wide"] = torch.nn.Parameter(given["wide"])
    found = load([(opened, name, None, tensor) for name, tensor in given.items()], "xpu:0")
    assert all(found[name] is tensor for name, tensor in given.items())
    sharded.check(found, mixed_tensors)
    assert device.made == []


def test_memory_that_cannot_be_pinned(opened, mixed_tensors, monkeypatch):
    """If torch cannot pin memory, pageable memory is used."""
    device = FakeDevice(monkeypatch)
    monkeypatch.undo()
    asked = []
    make = torch.empty

    def refuse(*args, pin_memory=False, **options):
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("no accelerator")
        return make(*args, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    for hook in ("empty", "event", "copy", "current"):
        monkeypatch.setattr(transfer, hook, getattr(device, hook))
    sharded.check(load(requests_for(opened), "xpu:0"), tensors_in_order(opened, mixed_tensors))
    assert asked.count(True) == 2


def test_a_device_without_events(opened, mixed_tensors, monkeypatch):
    """Each tensor is read into its own memory and copied at once."""
    device = FakeDevice(monkeypatch, has_events=False)
    sharded.check(load(requests_for(opened), "npu:0"), tensors_in_order(opened, mixed_tensors))
    assert device.log_of("staging") == []
    assert device.log_of("synchronize") == []


def test_a_big_endian_host(opened, mixed_tensors, device, monkeypatch):
    """Bytes are swapped on the way to devices that are big-endian as the host."""
    monkeypatch.setattr(transfer, "sys", SimpleNamespace(byteorder="big"))
    for name, tensor in load(requests_for(opened), "npu:0").items():
        wanted = mixed_tensors[name]
        width = wanted.element_size() // (2 if wanted.is_complex() else 1)
        rows = wanted.contiguous().view(-1).view(torch.uint8).view(-1, width)
        assert sharded.bytes_of(tensor) == bytes(rows.flip(1).flatten().tolist())
    assert device.log_of("staging") == []


def test_a_device_without_views_as_bytes(opened, mixed_tensors, device, monkeypatch):
    """Tensors are copied with their own dtype."""

    def refuse(tensor):
        raise RuntimeError("no such view")

    monkeypatch.setattr(transfer, "_flat", refuse)
    sharded.check(load(requests_for(opened), "npu:0"), tensors_in_order(opened, mixed_tensors))


def test_the_cpu_by_real_hooks(opened, mixed_tensors):
    """The hooks are not replaced."""
    sharded.check(load(requests_for(opened), "cpu"), tensors_in_order(opened, mixed_tensors))


@pytest.mark.parametrize("position", [0, 1, 7, 30])
def test_a_failing_read(opened, device, monkeypatch, position):
    """The error is raised when no copy is in flight."""
    fail_reading(monkeypatch, position)
    with pytest.raises(SafetensorError, match="the disk is gone"):
        load(requests_for(opened), "xpu:0")
    assert device.queue == []


def test_a_failing_wait_does_not_hide_the_first_error(opened, device, monkeypatch):
    """The second slot is waited for nevertheless."""
    waited = []

    def fail(event):
        waited.append(event)
        raise RuntimeError("the device is gone")

    fail_reading(monkeypatch, 2)
    monkeypatch.setattr(FakeEvent, "synchronize", fail)
    parts = {"wide": (0, 0, slice(1100)), "layers.3.weight": None}
    with pytest.raises(SafetensorError, match="the disk is gone"):
        load(requests_for(opened, parts), "xpu:0")
    assert len(set(waited)) == 2


def test_a_failing_device(opened, device, monkeypatch):
    """Its error propagates from a copy and from the last wait."""
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(requests_for(opened, {"layers.5.weight": slice(10)}), "xpu:0")

    def fail(to, source, non_blocking):
        raise RuntimeError("out of order")

    monkeypatch.setattr(transfer, "copy", fail)
    with pytest.raises(RuntimeError, match="out of order"):
        load(requests_for(opened), "xpu:0")


def test_a_full_device(opened, device, monkeypatch, reads):
    """torch's error propagates before anything is read."""

    def full(*args, **options):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(transfer, "empty", full)
    with pytest.raises(torch.OutOfMemoryError):
        load(requests_for(opened), "cuda:0")
    assert reads == []


@pytest.mark.parametrize("has_events", [True, False])
def test_progress(opened, mixed_tensors, monkeypatch, has_events):
    """It grows by copied bytes, and reports the total once, at the end."""
    monkeypatch.setattr(transfer, "_STAGING_NBYTES", 4096)
    device = FakeDevice(monkeypatch, has_events)
    told = []

    def progress(done, total):
        told.append((done, total))
        begun = sum(entry[1] for entry in device.log_of("copy"))
        assert done <= begun

    load(requests_for(opened), "xpu:0", progress)
    total = sum(tensor.nbytes for tensor in mixed_tensors.values())
    assert told[-1] == (total, total)
    assert told == sorted(set(told))
    assert len(told) > 5


def test_an_error_in_progress(opened, device):
    """It is raised once, when no copy is in flight."""
    told = []

    def stop(done, total):
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(requests_for(opened), "xpu:0", stop)
    assert len(told) == 1
    assert device.queue == []


def test_nothing_to_copy(opened, device):
    """Without tensors or elements no staging memory is allocated."""
    told = []
    assert transfer.copy_requests([], transfer.Device("xpu"), lambda *args: told.append(args)) == []
    found = load(requests_for(opened, {"layers.1.weight": None}), "xpu:0")
    assert found["layers.1.weight"].shape == (0, 3)
    assert device.log_of("staging") == []
    assert told == [(0, 0)]


def test_a_file_truncated_after_it_was_opened(mixed_path, device, tmp_path):
    """The reader's error propagates, and no copy is in flight."""
    cut = shutil.copy(mixed_path, tmp_path / "cut.safetensors")
    with safe_open(cut, "pt", backend="pread") as f:
        with open(cut, "r+b") as file:
            file.truncate(20_000)
        with pytest.raises((SafetensorError, OSError)):
            load(requests_for(f), "xpu:0")
    assert device.queue == []


def test_threads(mixed_path, mixed_tensors, device):
    """Concurrent loads share only the device."""

    def work(_):
        with safe_open(mixed_path, "pt", backend="pread") as f:
            return load(requests_for(f), "xpu:0")

    for one in together(work, range(4)):
        sharded.check(one, {name: mixed_tensors[name] for name in one})


def test_capture_is_refused(opened, device, monkeypatch):
    """It is refused before allocating; other devices are not asked."""
    monkeypatch.setattr(transfer, "is_capturing", lambda: True)
    with pytest.raises(SafetensorError, match="captured"):
        load(requests_for(opened), "cuda:0")
    assert device.made == []
    load(requests_for(opened), "xpu:0")


def test_the_log_says_that_torch_copies(opened, device, caplog):
    """The log says that torch copies, without a warning."""
    with caplog.at_level("DEBUG", logger="safetensors"):
        load(requests_for(opened), "cuda:1")
    records = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert records == [("DEBUG", "loading to cuda:1 by torch's copies")]

"""Running schedules: threads that stand for ranks, and processes of a gloo group."""

import itertools
import threading
import time

import pytest
import torch

from safetensors._group import exchange, frame, schedule
from support.rank_threads import NOTHING, Board, Comm, Ranks, Read, Stopped

pytestmark = pytest.mark.slow

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Divides tensors of some kilobytes as if they had megabytes."""
    for module in (schedule, exchange):
        monkeypatch.setattr(module, "BUFFER_NBYTES", 8 * KIB)
    monkeypatch.setattr(schedule, "PIECE_NBYTES", 16 * KIB)
    monkeypatch.setattr(schedule, "_SMALL_NBYTES", 4 * KIB)
    monkeypatch.setattr(schedule, "_MIN_EXCHANGE_NBYTES", 1 * KIB)
    monkeypatch.setattr(frame, "MAX_ROW_NBYTES", KIB // 4)


def model():
    """Tensors of many shapes, the larger ones divided into several pieces."""
    torch.manual_seed(0)
    shapes = [
        (300, 64),
        (),
        (7,),
        (0, 3),
        (64, 300),
        (12, 40, 50),
        (5000,),
        (30, 6, 4),
        (1, 1, 900),
    ]
    values = [torch.randint(-1000, 1000, shape, dtype=torch.int32) for shape in shapes]
    values += [values[0].to(torch.int16), values[4].to(torch.uint8), values[5].bool()]
    return values


def rows(size, rank, count):
    share = -(-count // size)
    return slice(min(rank * share, count), min((rank + 1) * share, count))


def part_of(kind, size, values=None):
    values = model() if values is None else values

    def part(rank, at):
        shape = values[at].shape
        if kind == "alike" or not shape:
            return ...
        if kind == "rows":
            return rows(size, rank, shape[0])
        if kind == "columns":
            return (..., rows(size, rank, shape[-1]))
        if kind == "pairs":  # of ranks that take the same
            return (..., rows(-(-size // 2), rank // 2, shape[-1]))
        if kind == "grid":  # of the first and the last axis
            columns = rows(-(-size // 2), rank // 2, shape[-1])
            return (
                (..., columns) if len(shape) == 1 else (rows(2, rank % 2, shape[0]), ..., columns)
            )
        if kind == "one":
            return ... if at % size == rank else NOTHING
        if kind == "some":
            return ... if (at + rank) % 2 else NOTHING
        if kind == "unusual":
            return slice(rank, None, 3)
        assert kind == "mixed"
        return [..., rows(size, rank, shape[0]), (..., slice(rank, None)), NOTHING][(at + rank) % 4]

    return part


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(
    "kind", ["alike", "rows", "columns", "pairs", "grid", "one", "some", "unusual", "mixed"]
)
def test_every_rank_gets_what_it_takes(kind, size):
    """Each byte is read once, but of unusual parts."""
    ranks = Ranks(model(), size, part_of(kind, size))
    ranks.check()
    nbytes = sum(each.nbytes for each in ranks.values)
    if kind not in ("some", "unusual", "mixed") and (kind, size) != ("grid", 5):
        assert sum(ranks.read_nbytes) == nbytes
    if kind in ("alike", "columns", "pairs"):
        assert max(ranks.read_nbytes) - min(ranks.read_nbytes) <= 20 * KIB
    if kind == "grid" and size > 2:  # rows of the first axis are too long
        steps = ranks.schedule.steps
        assert any(type(step) is schedule.Exchange and step.blocks[0].lead for step in steps)
    if kind == "unusual":
        assert ranks.schedule.frames[0] is None  # no data of it is sent


def test_pieces_arrive_in_place():
    """Results have memory of their own; only short pieces go by way of a bucket."""
    values = [torch.arange(60 * KIB, dtype=torch.uint8), torch.arange(100, dtype=torch.int64)]
    ranks = Ranks(values, 2, lambda rank, at: ...)
    sent = []
    ranks.board.carry_out = lambda calls: (sent.append(calls), Board.carry_out(ranks.board, calls))
    results = [future.result() for future in ranks.load()]
    assert len(sent) == 5
    for calls in sent:
        for rank, (*_, data) in enumerate(calls):
            is_in_place = any(
                data.untyped_storage().data_ptr() == each.untyped_storage().data_ptr()
                for each in results[rank]
            )
            assert is_in_place == (data.nbytes > 4 * KIB)
    for each in itertools.chain(*results):
        assert each.untyped_storage().nbytes() == each.nbytes


@pytest.mark.parametrize("kind", ["alike", "rows", "columns", "mixed"])
def test_destinations_with_strides(kind):
    """Other bytes of the tensor that a destination is a view of stay as they are."""
    ranks = Ranks(model(), 2, part_of(kind, 2))
    wide = []

    def destinations(_):
        found = []
        for each in ranks.expected[_]:
            if each is None or each.ndim < 2:
                found.append(None if each is None else torch.empty_like(each))
                continue
            wide.append(torch.ones(*each.shape[:-1], each.shape[-1] + 2, dtype=each.dtype))
            found.append(wide[-1][..., 1:-1])
        return found

    ranks.destinations = destinations
    ranks.check()
    assert wide
    assert all((each[..., 0] == 1).all() and (each[..., -1] == 1).all() for each in wide)


@pytest.mark.parametrize("kind", ["alike", "columns", "rows"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_read_that_fails(kind, failing):
    """Its rank raises the error, the others stop, and no thread is left."""
    ranks = Ranks(model(), 3, part_of(kind, 3))
    read = ranks.read

    def fails(rank, requests):
        if rank == failing and any(number > 3 for number, *_ in requests):
            raise ValueError("no bytes")
        read(rank, requests)

    ranks.read = fails
    errors = [future.exception(timeout=20) for future in ranks.load()]
    assert str(errors[failing]) == "no bytes"
    for rank, error in enumerate(errors):
        assert rank == failing or error is None or isinstance(error, Stopped)
    assert kind == "rows" or all(errors)
    assert not [each for each in threading.enumerate() if "safetensors-group" in each.name]


def test_a_failure_ends_long_reads():
    """A rank that waits for its own read sees that another one failed, and cancels the read."""
    ranks = Ranks(model(), 2, part_of("columns", 2))

    def read(rank, _):
        if rank == 0:
            raise ValueError("no bytes")
        end = time.monotonic() + 20
        while rank not in ranks.cancelled and time.monotonic() < end:
            time.sleep(0.01)

    ranks.read = read
    errors = [future.exception(timeout=30) for future in ranks.load()]
    assert isinstance(errors[0], ValueError)
    assert isinstance(errors[1], Stopped)
    assert sorted(ranks.cancelled) == [0, 1]


@pytest.mark.parametrize("ahead", [1, 3])
def test_reads_ahead(ahead, monkeypatch):
    """A rank reads for several steps at once, with a bounded number of buffers."""
    made = []

    class Buffers(exchange._Buffers):
        def __init__(self, device):
            super().__init__(device)
            made.append(self)

    monkeypatch.setattr(exchange, "_Buffers", Buffers)
    values = [torch.randint(0, 100, (4000, 64), dtype=torch.uint8)]
    ranks = Ranks(values, 2, lambda rank, at: (..., rows(2, rank, 64)), ahead=ahead)
    assert len(ranks.schedule.steps) > 10
    reading = [0, 0]
    most = [0, 0]
    lock = threading.Lock()
    read = ranks.read

    def slow(rank, requests):
        with lock:
            reading[rank] += 1
            most[rank] = max(most[rank], reading[rank])
        time.sleep(0.02)
        read(rank, requests)
        with lock:
            reading[rank] -= 1

    ranks.read = slow
    ranks.check()
    assert most == [ahead, ahead]
    assert [len(each._free) <= 2 * ahead + 3 for each in made] == [True, True]


@pytest.mark.parametrize("kind", ["alike", "columns", "one"])
def test_long_tensors_between_short_ones(kind):
    """Short tensors wait for others, so that few messages have them, but not beyond some steps."""
    values = []
    for number in range(160):
        values.append(torch.arange(number, number + 80, dtype=torch.int32).view(5, 16))
        if number % 40 == 10:
            values.append(torch.arange(60 * KIB, dtype=torch.int32).view(240, 256) + number)
    ranks = Ranks(values, 3, part_of(kind, 3, values))
    ranks.check()
    assert sum(ranks.read_nbytes) == sum(each.nbytes for each in values)
    buckets = [step for step in ranks.schedule.steps if isinstance(step, schedule.Broadcast)]
    buckets = [step for step in buckets if step.is_bucket]
    if kind == "one":
        assert not buckets
        return
    numbers = [number for step in buckets for number, _ in step.blocks]
    assert numbers == [at for at, each in enumerate(values) if each.numel() == 80]
    full, long = 160 * 320 // (8 * KIB), 4
    assert len(buckets) <= full + long


def test_leaving_early():
    """A caller that leaves the loop leaves no thread behind."""
    ranks = Ranks(model(), 2, part_of("rows", 2))
    for rank in range(2):
        comm = Comm(ranks.board, rank)
        found = exchange.run(
            ranks.schedule,
            comm,
            Read(ranks, rank),
            ranks.destinations(rank),
        )
        assert next(found)[0] == 3
        found.close()
        assert ranks.cancelled[-1] == rank
    assert not [each for each in threading.enumerate() if "safetensors-group" in each.name]

"""Running schedules: threads that stand for ranks, and processes of a gloo group."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from safetensors._group import exchange, frame, schedule
from safetensors._group.column import Column
from safetensors._group.parts import byte_shape, index_of_axes, taken_of
from safetensors._group.schedule import Tensor

pytestmark = pytest.mark.slow

KIB = 1 << 10


class Stopped(Exception):
    pass


class Board:
    """What ranks that are threads post for each other."""

    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()
        self.posted = {}
        self.stopped = threading.Event()

    def post(self, number, rank, *call):
        with self.lock:
            calls, done = self.posted.setdefault(number, ({}, threading.Event()))
            calls[rank] = call
            if len(calls) == self.size:
                self.carry_out([calls[rank] for rank in range(self.size)])
                del self.posted[number]
                done.set()
        return done

    def carry_out(self, calls):
        ((kind, source),) = {call[:2] for call in calls}
        if kind == "broadcast":
            for _, _, data in calls:
                assert data.dtype == torch.uint8
                data.copy_(calls[source][2])
            return
        parts = [list(call[3].split(call[5])) for call in calls]
        for rank, (*_, to, _, to_sizes, _) in enumerate(calls):
            assert to.is_contiguous()
            for part, each in zip(to.split(to_sizes), parts, strict=True):
                part.copy_(each[rank])


class Comm:
    """One rank's way to the board."""

    device = torch.device("cpu")

    def __init__(self, board, rank):
        self.board, self.rank, self.size = board, rank, board.size
        self.numbers = itertools.count()

    def broadcast(self, data, source):
        return self.board.post(next(self.numbers), self.rank, "broadcast", source, data)

    def all_to_all(self, to, source, to_sizes, source_sizes):
        call = ("all_to_all", None, to, source, to_sizes, source_sizes)
        return self.board.post(next(self.numbers), self.rank, *call)

    def wait(self, work):
        while not work.wait(0.05):
            self.check()

    def check(self):
        if self.board.stopped.is_set():
            raise Stopped

    progressed = check


def selected(values, index):
    """Indexes a tensor by slices and lists of slices, one for each axis."""
    for axis, item in enumerate(index):
        slices = item if isinstance(item, list) else [item]
        found = [range(values.shape[axis])[each] for each in slices]
        values = values.index_select(axis, torch.tensor([*itertools.chain(*found)]).long())
    return values


NOTHING = object()


class Read:
    """What a rank reads by."""

    def __init__(self, ranks, rank):
        self.ranks, self.rank = ranks, rank

    def __call__(self, requests):
        self.ranks.read(self.rank, requests)

    def cancel(self):
        self.ranks.cancelled.append(self.rank)


class Ranks:
    """Loads tensors by several ranks, each a thread.

    values: the tensors of a file.
    part: what `rank` takes of a tensor, by its number; `NOTHING` or an index.
    """

    def __init__(self, values, size, part, *, ahead=4):
        self.values, self.size, self.ahead = values, size, ahead
        self.parts = [[part(rank, at) for at in range(len(values))] for rank in range(size)]
        self.read_nbytes = [0] * size
        self.board = Board(size)
        self.orders = [[] for _ in range(size)]
        self.cancelled = []
        tensors, taken = [], [[] for _ in range(size)]
        for at, each in enumerate(values):
            bits = 8 * each.element_size()
            tensors.append(Tensor(byte_shape(each.shape, bits), 64 << 10))
            for rank, parts in enumerate(self.parts):
                index = parts[at]
                got = None if index is NOTHING else taken_of(index, tuple(each.shape), bits)
                taken[rank].append(got)
        self.schedule = schedule.schedule(Column.of(tensors), [*map(Column.of, taken)])
        self.expected = [
            [None if index is NOTHING else values[at][index] for at, index in enumerate(parts)]
            for parts in self.parts
        ]

    def destinations(self, rank):
        return [
            None if each is None else torch.empty(each.shape, dtype=each.dtype)
            for each in self.expected[rank]
        ]

    def read(self, rank, requests):
        for number, axes, to in requests:
            values = self.values[number]
            if axes is None:
                found = self.expected[rank][number]
                to.copy_(found)
            else:
                shape, bits = tuple(values.shape), 8 * values.element_size()
                found = selected(values, index_of_axes(axes, shape, bits)).contiguous()
                to.copy_(found.view(-1).view(torch.uint8))
            self.read_nbytes[rank] += found.nbytes

    def run(self, rank):
        destinations = self.destinations(rank)
        comm = Comm(self.board, rank)
        try:
            for numbers in exchange.run(
                self.schedule,
                comm,
                Read(self, rank),
                destinations,
                self.ahead,
            ):
                for number in numbers:
                    assert torch.equal(destinations[number], self.expected[rank][number])
                self.orders[rank] += numbers
        except BaseException:
            self.board.stopped.set()
            raise
        return destinations

    def load(self):
        """Returns the results of all ranks, as futures."""
        with ThreadPoolExecutor(self.size) as pool:
            return [pool.submit(self.run, rank) for rank in range(self.size)]

    def check(self):
        for rank, future in enumerate(self.load()):
            future.result()
            takes = {at for at, each in enumerate(self.expected[rank]) if each is not None}
            assert sorted(self.orders[rank]) == sorted(takes)
        common = set(range(len(self.values)))
        for each in self.expected:
            common -= {at for at, found in enumerate(each) if found is None or not found.numel()}
        assert len({tuple(at for at in order if at in common) for order in self.orders}) == 1


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


def part_of(kind, size):
    values = model()

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

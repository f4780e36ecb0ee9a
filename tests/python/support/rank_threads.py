"""Runs the schedule of a load in this process: a thread for each rank, and no files."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from safetensors._group import exchange, schedule
from safetensors._group.column import Column
from safetensors._group.parts import index_of_axes, taken_of
from safetensors._group.schedule import Tensor
from safetensors._regions import byte_shape


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

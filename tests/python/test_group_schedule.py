"""Schedules of groups of ranks: what is read, sent and received, without files or processes."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safetensors._group import parts
from safetensors._group.parts import UNUSUAL, index_of_axes, taken_of
from safetensors._group.schedule import Broadcast, Exchange, Own, Tensor
from safetensors._regions import byte_shape
from support.rank_loads import (
    BUFFER,
    PIECE,
    chunk,
    loads,
    offsets,
    scheduled,
    small_limits,
    whole,
)

pytestmark = pytest.mark.slow


class Simulation:
    """Carries out a schedule on numbers instead of bytes, and checks every step."""

    def __init__(self, tensors, taken):
        self.tensors, self.taken = tensors, taken
        self.size = len(taken)
        self.schedule = scheduled(tensors, taken)
        self.read = [Counter() for _ in tensors]  # how often each byte is read
        self.read_by = [0] * self.size
        self.sent_by = [0] * self.size
        self.local = [
            [[None] * (0 if each in (None, UNUSUAL) else parts.nbytes_of(each)) for each in rank]
            for rank in taken
        ]
        for step in self.schedule.steps:
            {Own: self._own, Broadcast: self._broadcast, Exchange: self._exchange}[type(step)](step)

    def check(self):
        """Checks that each rank has what it takes, each byte delivered once."""
        for rank, number in itertools.product(range(self.size), range(len(self.tensors))):
            axes, local = self.taken[rank][number], self.local[rank][number]
            if axes is not None and axes is not UNUSUAL:
                assert local == offsets(self.tensors[number].shape, axes)

    def _own(self, step):
        assert step.ranks
        for rank in step.ranks:
            axes = self.taken[rank][step.tensor]
            if axes is not UNUSUAL:
                found = offsets(self.tensors[step.tensor].shape, axes)
                assert found
                self._deliver(rank, step.tensor, 0, found)
                self.read[step.tensor].update(found)

    def _broadcast(self, step):
        assert 0 <= step.owner < self.size
        nbytes = 0
        for number, block in step.blocks:
            rows = self._read_block(step.owner, number, block)
            nbytes += len(rows)
            for rank in range(self.size):
                taken = self._select(rank, number, block, rows)
                assert step.is_bucket or taken == rows  # else it cannot be sent in place
        assert 0 < nbytes == step.nbytes <= (BUFFER if step.is_bucket else PIECE)
        assert step.is_bucket or len(step.blocks) == 1
        self.sent_by[step.owner] += nbytes

    def _exchange(self, step):
        assert len(step.blocks) == self.size
        sent = [0] * self.size
        received = [0] * self.size
        ends = []
        for owner, block in enumerate(step.blocks):
            rows = self._read_block(owner, step.tensor, block)
            assert len(rows) <= BUFFER
            for rank in range(self.size):
                nbytes = len(self._select(rank, step.tensor, block, rows))
                offset, length = self.schedule.frames[step.tensor].share(rank, block)
                if length:
                    ends.append((rank, offset, offset + length))
                sent[owner] += nbytes
                received[rank] += nbytes
        assert sum(sent) > 0
        assert max(sent) <= BUFFER
        assert max(received) <= BUFFER
        for rank in range(self.size):  # one stretch, by the order of the ranks
            stretches = [each[1:] for each in ends if each[0] == rank]
            assert all(a[1] == b[0] for a, b in itertools.pairwise(stretches))

    def _read_block(self, owner, number, block):
        found = self.schedule.frames[number]
        rows = [
            offset
            for axes in found.axes_of(block)
            for offset in offsets(self.tensors[number].shape, axes)
        ]
        assert len(rows) == found.block_nbytes(block) == math.prod(found.block_shape(block))
        self.read[number].update(rows)
        self.read_by[owner] += len(rows)
        return rows

    def _select(self, rank, number, block, rows):
        found = self.schedule.frames[number]
        offset, nbytes = found.share(rank, block)
        if nbytes == 0:
            return []
        shape = found.block_shape(block)
        taken = [rows[at] for at in offsets(shape, found.selection(rank, block))]
        assert len(taken) == nbytes
        self._deliver(rank, number, offset, taken)
        return taken

    def _deliver(self, rank, number, offset, values):
        local = self.local[rank][number]
        assert local[offset : offset + len(values)] == [None] * len(values)
        local[offset : offset + len(values)] = values


@settings(deadline=None, max_examples=150)
@given(loads())
def test_every_byte_is_delivered_once(load):
    with small_limits():
        done = Simulation(*load)
        assert done.schedule.steps == scheduled(*load).steps
    done.check()
    for number, counts in enumerate(done.read):
        taken = [rank[number] for rank in done.taken]
        if UNUSUAL not in taken:
            assert max(counts.values(), default=1) == 1
            wanted = {
                offset
                for axes in taken
                if axes is not None
                for offset in offsets(done.tensors[number].shape, axes)
            }
            assert counts.keys() >= wanted
            if len({axes for axes in taken if axes and all(axes)}) == 1:
                assert counts.keys() == wanted


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 16), st.lists(st.tuples(st.integers(2, 40), st.integers(1, 8))), st.data())
def test_reads_are_even(size, sizes, data):
    """Also where tensors that are broadcast and tensors that are exchanged take turns."""
    tensors = [Tensor((rows, 4 * size * columns), 1 << 20) for rows, columns in sizes]
    axes = [data.draw(st.sampled_from([None, 1])) for _ in tensors]
    taken = [
        [
            whole(tensor.shape) if axis is None else chunk(tensor.shape, axis, rank, size)
            for tensor, axis in zip(tensors, axes, strict=True)
        ]
        for rank in range(size)
    ]
    with small_limits():
        planned = scheduled(tensors, taken)
    read = [0] * size
    for step in planned.steps:
        assert not isinstance(step, Own)
        if isinstance(step, Broadcast):
            read[step.owner] += step.nbytes
        else:
            for rank, block in enumerate(step.blocks):
                read[rank] += planned.frames[step.tensor].block_nbytes(block)
    assert sum(read) == sum(math.prod(tensor.shape) for tensor in tensors)
    assert max(read) - min(read) <= max(PIECE, 2 * max((t.shape[1] for t in tensors), default=0))


def kinds(shape, taken, gap=64 << 10):
    planned = scheduled([Tensor(shape, gap)], [[axes] for axes in taken])
    return [type(step) for step in planned.steps]


WIDE = (4096, 28672)


@pytest.mark.parametrize(
    ("shape", "part", "expected"),
    [
        (WIDE, lambda shape, rank: whole(shape), [Broadcast] * 8),
        (WIDE, lambda shape, rank: chunk(shape, 0, rank, 4), [Own]),
        (WIDE, lambda shape, rank: chunk(shape, 1, rank, 4), [Exchange] * 4),
        (WIDE, lambda shape, rank: chunk(shape, 1, rank // 2, 2), [Exchange] * 8),
        (WIDE, lambda shape, rank: chunk(shape, 0, rank // 2, 2), [Exchange] * 15),
        (WIDE, lambda shape, rank: whole(shape) if rank == 3 else None, [Own]),
        (WIDE, lambda shape, rank: chunk(shape, 1, 3, 4) if rank == 3 else None, [Own]),
        (WIDE, lambda shape, rank: whole(shape) if rank else None, [Exchange] * 15),
        (WIDE, lambda shape, rank: whole(shape) if rank else UNUSUAL, [Own]),
        (WIDE, lambda shape, rank: None, []),
        (WIDE, lambda shape, rank: (*whole(shape[:1]), ()), []),
        ((128, 1 << 20), lambda shape, rank: chunk(shape, 1, rank, 4), [Own]),
        ((40, 512), lambda shape, rank: chunk(shape, 1, rank, 4), [Broadcast]),
        ((40, 512), lambda shape, rank: whole(shape), [Broadcast]),
        ((2, 4), lambda shape, rank: chunk(shape, 0, rank, 4), [Own]),
    ],
)
def test_ways(shape, part, expected):
    """How 4 ranks load a tensor of a local file."""
    assert kinds(shape, [part(shape, rank) for rank in range(4)]) == expected


def test_short_tensors_are_broadcast_together():
    """A bucket is sent when it is full, and soon after its first tensor."""
    long, short = (64 << 20,), (1000,)
    tensors = [Tensor(shape, 0) for shape in [short, long, short, long, long, long, short]]
    steps = scheduled(tensors, [[whole(each.shape) for each in tensors]] * 2).steps
    buckets = [step for step in steps if step.is_bucket]
    assert [[number for number, _ in step.blocks] for step in buckets] == [[0, 2], [6]]
    tensors = [Tensor((3 << 20,), 0)] * 5
    steps = scheduled(tensors, [[whole(each.shape) for each in tensors]] * 2).steps
    assert [len(step.blocks) for step in steps] == [2, 2, 1]
    assert [step.owner for step in steps] == [0, 1, 0]


def test_many_tensors_take_little_time():
    """Of which ranks take the same are classified once."""
    shape = (4, 1024)
    tensors = [Tensor(shape, 64 << 10) for number in range(20_000)]
    taken = [
        [whole(shape) if number % 16 == rank else None for number in range(len(tensors))]
        for rank in range(16)
    ]
    steps = scheduled(tensors, taken).steps
    assert [step.ranks for step in steps] == [frozenset({i % 16}) for i in range(len(tensors))]


SLICES = st.slices(5).filter(lambda each: each.step is None or each.step > 0)
BASIC = [st.integers(-3, 2), SLICES]
LISTS = st.lists(SLICES, max_size=3)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(3, 5), min_size=1, max_size=3),
    st.one_of(
        st.lists(st.one_of(*BASIC, LISTS), max_size=3),
        st.lists(st.one_of(*BASIC, st.none()), max_size=4),
        st.tuples(*BASIC, st.just(...), *BASIC).map(list),
    ),
)
def test_taken_of(shape, items):
    """An index is turned to bytes, or is unusual; and back to an index of the same elements."""
    torch = pytest.importorskip("torch")
    values = torch.arange(math.prod(shape)).view(shape)
    try:
        expected = select(torch, values, items)
    except (IndexError, ValueError):
        return
    taken = taken_of(tuple(items), shape, 32)
    if taken is UNUSUAL:
        assert any(isinstance(item, (slice, list)) for item in items)
        return
    found = torch.tensor(offsets(byte_shape(shape, 32), taken), dtype=torch.int64)
    assert torch.equal(found[::4] // 4, expected)
    assert parts.nbytes_of(taken) == 4 * len(expected)
    assert torch.equal(select(torch, values, index_of_axes(taken, shape, 32)), expected)


def select(torch, values, items):
    """Returns the elements that an index selects, of which items may be lists of slices."""
    if not any(isinstance(item, list) for item in items):
        return values[tuple(items)].flatten()
    if len(items) > values.ndim:
        raise IndexError("too many indices")
    for axis, item in enumerate(items):
        indices = range(values.shape[axis])
        slices = item if isinstance(item, list) else [item]
        found = [indices[each] for each in slices]
        found = [each if isinstance(each, range) else [each] for each in found]
        number = torch.tensor([*itertools.chain(*found)], dtype=torch.int64)
        values = values.index_select(axis, number)
    return values.flatten()


@pytest.mark.parametrize(
    ("index", "shape", "bits", "expected"),
    [
        (None, (), 16, (((0, 2),),)),
        (None, (3, 4), 16, (((0, 3),), ((0, 8),))),
        (slice(1, 2), (3, 4), 16, (((1, 2),), ((0, 8),))),
        ((..., slice(1, 3)), (3, 4), 16, (((0, 3),), ((2, 6),))),
        ((..., -1), (3, 4), 8, (((0, 3),), ((3, 4),))),
        ([slice(0, 1), slice(1, 2), slice(3, 4)], (4,), 32, (((0, 8), (12, 16)),)),
        ([slice(2, 3), slice(0, 1)], (4,), 32, UNUSUAL),
        ([slice(0, 2), slice(1, 3)], (4,), 32, UNUSUAL),
        (slice(0, 4, 2), (4,), 32, UNUSUAL),
        (slice(0, 2, 2), (4,), 32, (((0, 4),),)),
        (slice(3, 1), (4,), 32, ((),)),
        ([], (4,), 32, ((),)),
        (None, (0, 4), 32, ((), ((0, 16),))),
        (slice(1, 2), (3, 4), 4, (((1, 2),), ((0, 2),))),
        (None, (3, 3), 4, UNUSUAL),
        (None, (8,), 4, UNUSUAL),
        (None, (2, 1 << 22), 4, UNUSUAL),
        ([0, 2], (4,), 32, (((0, 4), (8, 12)),)),
    ],
)
def test_taken_of_examples(index, shape, bits, expected):
    assert taken_of(index, shape, bits) == expected


def test_unusual_survives_pickling():
    """Ranks send each other what they take."""
    import pickle

    assert pickle.loads(pickle.dumps(UNUSUAL)) is UNUSUAL

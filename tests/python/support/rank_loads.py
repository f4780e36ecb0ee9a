"""What ranks load together, in bytes and without files."""

import contextlib
import itertools
import math
from unittest import mock

from hypothesis import strategies as st

from safetensors._group import frame, schedule
from safetensors._group.column import Column
from safetensors._group.parts import UNUSUAL
from safetensors._group.schedule import Tensor

PIECE, BUFFER, ROW, ALIGNMENT = 192, 128, 8, 4  # 16 rows fit into a buffer


def scheduled(tensors, taken):
    return schedule.schedule(Column.of(tensors), [Column.of(each) for each in taken])


@contextlib.contextmanager
def small_limits():
    """Divides tensors of some hundred bytes as if they had some hundred megabytes."""
    limits = {
        schedule: {
            "PIECE_NBYTES": PIECE,
            "BUFFER_NBYTES": BUFFER,
            "_SMALL_NBYTES": 24,
            "_MIN_EXCHANGE_NBYTES": 16,
            "_BUCKET_STEPS": 2,
            "_BUCKET_BLOCKS": 5,
        },
        frame: {"MAX_ROW_NBYTES": ROW, "_ALIGNMENT": ALIGNMENT},
    }
    with contextlib.ExitStack() as stack:
        for module, values in limits.items():
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))
        yield


def offsets(shape, axes):
    """Returns the offsets of the selected elements, in their order."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    indices = [list(itertools.chain(*(range(*pair) for pair in ranges))) for ranges in axes]
    return [
        sum(index * stride for index, stride in zip(each, strides, strict=True))
        for each in itertools.product(*indices)
    ]


def whole(shape):
    return tuple(((0, size),) for size in shape)


def chunk(shape, axis, rank, size):
    share = -(-shape[axis] // size)
    begin, end = min(rank * share, shape[axis]), min((rank + 1) * share, shape[axis])
    return (*whole(shape[:axis]), ((begin, end),) if begin < end else (), *whole(shape[axis + 1 :]))


@st.composite
def shapes(draw):
    """Shapes whose last axis is in bytes, of elements of four bytes."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    return (*sizes[:-1], 4 * sizes[-1] * draw(st.sampled_from([1, 1, 5])))


@st.composite
def ranges(draw, size, unit):
    edges = draw(st.lists(st.integers(0, size // unit), unique=True, max_size=4).map(sorted))
    edges = [edge * unit for edge in edges[: len(edges) // 2 * 2]]
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@st.composite
def axes_of(draw, shape):
    if draw(st.booleans()):
        return whole(shape)
    units = [1] * (len(shape) - 1) + [4]
    return tuple(
        draw(st.one_of(st.just(((0, size),)), ranges(size, unit)))
        for size, unit in zip(shape, units, strict=True)
    )


@st.composite
def parts_of(draw, shape, size):
    """What each of `size` ranks takes of a tensor."""
    kind = draw(st.sampled_from(["alike", "chunks", "replicated chunks", "some", "any", "unusual"]))
    if kind == "alike":
        return [draw(axes_of(shape))] * size
    if "chunks" in kind:
        elements = (*shape[:-1], shape[-1] // 4)
        axis = draw(st.integers(0, len(shape) - 1))
        copies = draw(st.integers(1, size)) if kind == "replicated chunks" else 1
        chunks = [chunk(elements, axis, rank // copies, -(-size // copies)) for rank in range(size)]
        return [
            (*each[:-1], tuple((4 * begin, 4 * end) for begin, end in each[-1])) for each in chunks
        ]
    if kind == "some":
        part = draw(axes_of(shape))
        return [part if draw(st.booleans()) else None for _ in range(size)]
    found = [draw(st.one_of(st.none(), axes_of(shape))) for _ in range(size)]
    if kind == "unusual":
        found[draw(st.integers(0, size - 1))] = UNUSUAL
    return found


@st.composite
def loads(draw):
    size = draw(st.integers(1, 16))
    gap = draw(st.sampled_from([0, 8, 1 << 20]))
    tensors = [Tensor(draw(shapes()), gap) for number in range(draw(st.integers(0, 4)))]
    by_tensor = [draw(parts_of(tensor.shape, size)) for tensor in tensors]
    return tensors, [[each[rank] for each in by_tensor] for rank in range(size)]

"""Parts of tensors and their bytes, compared with NumPy."""

import itertools
import random
import time

import numpy as np
import pytest

from safetensors._dcp import boxes
from safetensors._regions import byte_shape


def grid(sizes):
    """An array whose values are the offsets of its bytes."""
    return np.arange(boxes.nbytes(sizes)).reshape(sizes)


def index_of(box):
    """The slices of a box."""
    return tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))


def random_case(rng):
    """A whole and a part of it, often with dimensions of 0 or 1 and parts that fill them."""
    whole = tuple(rng.choice([1, 1, 2, 3, 5]) for _ in range(rng.randrange(1, 5)))
    offsets = tuple(rng.randrange(size + 1) if rng.random() < 0.6 else 0 for size in whole)
    sizes = tuple(
        size - offset if rng.random() < 0.6 else rng.randrange(size - offset + 1)
        for size, offset in zip(whole, offsets, strict=True)
    )
    return whole, boxes.Box(offsets, sizes)


def test_runs():
    """For 3,000 parts: all bytes of the part, in order, in as few runs as possible."""
    rng = random.Random(9)
    for _ in range(3000):
        whole, part = random_case(rng)
        assert boxes.fits(whole, part)
        starts, nbytes = boxes.runs(whole, part)
        starts = list(starts)
        found = [at for start in starts for at in range(start, start + nbytes)]
        expected = grid(whole)[index_of(part)].reshape(-1)
        assert found == expected.tolist()
        breaks = np.count_nonzero(np.diff(expected) != 1) + 1 if expected.size else 0
        # Only dimensions of 1 make runs that touch: (2, 1) of (2, 1, 3) is not looked at as one.
        assert len(starts) >= breaks
        if all(size > 1 for size in part.sizes):
            assert len(starts) == breaks


def test_runs_are_made_lazily():
    """A part has millions of runs without taking memory."""
    starts, nbytes = boxes.runs((1 << 40, 2), boxes.Box((0, 1), (1 << 40, 1)))
    assert nbytes == 1
    assert list(itertools.islice(starts, 3)) == [1, 3, 5]


@pytest.mark.parametrize("most", [1, 7, 64])
def test_blocks(most):
    """They are contiguous, and the whole in order."""
    rng = random.Random(most)
    for _ in range(500):
        whole, _ = random_case(rng)
        found = []
        for block in boxes.blocks(whole, most):
            values = grid(whole)[index_of(block)].reshape(-1)
            assert 0 < values.size <= most
            assert np.array_equal(values, np.arange(values[0], values[0] + values.size))
            found += values.tolist()
        assert found == list(range(boxes.nbytes(whole)))
    assert list(boxes.blocks((3, 0), most)) == []


def test_overlapping_and_common():
    """As the sets of bytes say."""
    rng = random.Random(5)
    seen = set()
    for _ in range(3000):
        whole, first = random_case(rng)
        parts = [first]
        while len(parts) < 3:
            other, part = random_case(rng)
            if len(other) == len(whole) and boxes.fits(whole, part):
                parts.append(part)
        sets = [set(grid(whole)[index_of(part)].reshape(-1).tolist()) for part in parts]
        pairs = [(i, j) for i in range(3) for j in range(i) if sets[i] & sets[j]]
        found = boxes.overlapping(parts)
        assert (found is None) == (not pairs)
        if found is not None:
            assert tuple(sorted(found, reverse=True)) in pairs
            a, b = (parts[i] for i in found)
            shared = boxes.common(a, b)
            assert set(grid(whole)[index_of(shared)].reshape(-1).tolist()) == (
                sets[found[0]] & sets[found[1]]
            )
            inner = boxes.relative(shared, a)
            assert np.array_equal(
                grid(whole)[index_of(a)][index_of(inner)], grid(whole)[index_of(shared)]
            )
        seen.add(found is None)
    assert seen == {True, False}


def divided(rng, whole, count):
    """Returns parts that fill the whole once: one of them is cut in two again and again."""
    parts = [boxes.Box((0,) * len(whole), whole)]
    for _ in range(count):
        part = parts.pop(rng.randrange(len(parts)))
        dim = rng.randrange(len(whole))
        cut = rng.randint(0, part.sizes[dim])
        for begin, end in ((0, cut), (cut, part.sizes[dim])):
            offsets, sizes = list(part.offsets), list(part.sizes)
            offsets[dim] += begin
            sizes[dim] = end - begin
            parts.append(boxes.Box(tuple(offsets), tuple(sizes)))
    rng.shuffle(parts)
    return parts


def test_fill():
    """As counting the bytes says: parts that fill the whole, and those with one that was moved,
    grown, repeated or left out."""
    rng = random.Random(6)
    seen = []
    for _ in range(2000):
        whole, _ = random_case(rng)
        parts = divided(rng, whole, rng.randint(0, 12))
        assert boxes.fill(whole, parts)
        at = rng.randrange(len(parts))
        change = rng.choice(["move", "grow", "repeat", "leave out"])
        offsets, sizes = map(list, parts.pop(at))
        dim = rng.randrange(len(whole))
        if change == "move":
            offsets[dim] = rng.randint(0, whole[dim] - sizes[dim])
        elif change == "grow":
            sizes[dim] = rng.randint(0, whole[dim] - offsets[dim])
        changed = boxes.Box(tuple(offsets), tuple(sizes))
        parts += {"repeat": 2, "leave out": 0}.get(change, 1) * [changed]
        counts = np.zeros(whole, int)
        for part in parts:
            counts[index_of(part)] += 1
        assert boxes.fill(whole, parts) == bool((counts == 1).all())
        seen.append(boxes.fill(whole, parts))
    assert 200 < sum(seen) < 1800


@pytest.mark.timed
def test_many_parts_that_are_hard_to_tell_apart():
    """Each meets most others in one dimension, and none in both: comparing them takes hours."""
    count = 30_000
    parts = [boxes.Box((i, i), (count, 1)) for i in range(count)]
    parts += [boxes.Box((0, i), (i, 1)) for i in range(count)]
    parts += [boxes.Box((i + count, i), (count - i, 1)) for i in range(count)]
    begin = time.process_time()
    assert boxes.fill((2 * count, count), parts)
    assert not boxes.fill((2 * count, count), [*parts[:-1], parts[0]])
    assert boxes.overlapping(parts) is None
    assert time.process_time() - begin < 10


def test_a_part_has_an_offset_for_each_dimension():
    with pytest.raises(ValueError, match="zip"):
        boxes.runs((3, 4), boxes.Box((0,), (3, 4)))


def test_fits():
    """Parts that reach out of the whole, or have other dimensions, do not."""
    whole = (3, 4)
    assert boxes.fits(whole, boxes.Box((3, 0), (0, 4)))
    for offsets, sizes in [((1, 0), (3, 4)), ((-1, 0), (1, 4)), ((0,), (12,)), ((0, 0), (-1, 4))]:
        assert not boxes.fits(whole, boxes.Box(offsets, sizes))


def test_last_dimension_is_in_bytes():
    """Also of elements of four bits, and of tensors without dimensions."""
    assert byte_shape((), 16) == (2,)
    assert byte_shape((3, 4), 32) == (3, 16)
    assert boxes.box((1, 2), (3, 4), 4) == ((1, 1), (3, 2))
    assert boxes.box((), (), 64) == ((0,), (8,))

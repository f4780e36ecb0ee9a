"""Makes sure that the ranks of a group load the same files, and says what each of them takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from .column import Column
from .communicator import Disagreement
from .message import Malformed, Message, expect, refused
from .parts import UNUSUAL, Axes, Ranges, Taken

if TYPE_CHECKING:
    from .communicator import Communicator

T = TypeVar("T")

# Instead of the number of axes.
_NOTHING, _UNUSUAL = -1, -2


def agree(
    comm: Communicator,
    purpose: str,
    lines: Sequence[str],
    numbers: Sequence[int],
    understand: Callable[[Sequence[int]], T],
) -> list[T]:
    """Returns what the numbers of each rank mean.

    Args:
        comm: the ranks.
        purpose: see `Communicator.gather`.
        lines: what has to be the same on all ranks.
        numbers: what need not.
        understand: returns what the numbers of a rank mean; raises Malformed.

    Raises:
        Disagreement: the lines differ.
        SafetensorError: a rank sent what makes no sense.
    """
    told = comm.gather(purpose, Message(lines, numbers))
    first = told[0].texts
    for rank, (theirs, _, _) in enumerate(told):
        for ours, other in itertools.zip_longest(first, theirs, fillvalue="no other file"):
            if ours != other:
                raise Disagreement(
                    f"the ranks load different files: rank {rank} has {other}, rank 0 has {ours}"
                )
    return [understood(rank, understand, each.numbers) for rank, each in enumerate(told)]


def understood(rank: int, understand: Callable[..., T], *received: object) -> T:
    """Returns `understand(*received)`.

    Raises:
        SafetensorError: it raised Malformed. Names the rank that sent it.
    """
    try:
        return understand(*received)
    except Malformed as error:
        raise refused(rank, error) from None


def pack(taken: Column[Taken]) -> list[int]:
    """Returns what a rank takes of each tensor as integers.

    the count of parts
    of each: how many axes; of each axis: how many ranges; begin and end of each
    of each tensor: the number of its part
    """
    found = [len(taken.values)]
    for part in taken.values:
        if part is None:
            found.append(_NOTHING)
        elif part is UNUSUAL:
            found.append(_UNUSUAL)
        else:
            found.append(len(part))
            for ranges in part:
                found.append(len(ranges))
                found += itertools.chain(*ranges)
    return [*found, *taken.numbers]


def unpack(packed: Sequence[int], shapes: Column[tuple[int, ...]]) -> Column[Taken]:
    """Returns what `pack` was called with.

    Args:
        packed: what it returned, on any rank.
        shapes: of the tensors, see `_regions.byte_shape`.

    Raises:
        Malformed: the integers are not those of parts of these tensors.
    """
    numbers = iter(packed)
    count = _count(numbers, len(shapes.numbers))
    parts = [_part(numbers, len(packed)) for _ in range(count)]
    places = list(numbers)
    expected = len(shapes.numbers)
    expect(len(places) == expected, f"parts of {len(places)} tensors, not of {expected}")
    for place, shape in {*zip(places, shapes.numbers, strict=True)}:
        expect(0 <= place < count, f"a tensor with part {place} of {count}")
        part = parts[place]
        if part is not None and part is not UNUSUAL:
            _check(part, shapes.values[shape])
    return Column(parts, places)


def _part(numbers: Iterator[int], most: int) -> Taken:
    count = next(numbers, 0)
    if count == _NOTHING:
        return None
    if count == _UNUSUAL:
        return UNUSUAL
    expect(1 <= count <= most, f"a part with {count} axes")
    return tuple(_ranges(numbers, most) for _ in range(count))


def _ranges(numbers: Iterator[int], most: int) -> Ranges:
    edges = list(itertools.islice(numbers, 2 * _count(numbers, most)))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


def _count(numbers: Iterator[int], most: int) -> int:
    """Returns the next integer, a count. If fewer follow, the checks afterwards notice it."""
    count = next(numbers, 0)
    expect(0 <= count <= most, f"a count of {count} where at most {most} can follow")
    return count


def _check(part: Axes, shape: tuple[int, ...]) -> None:
    """Raises Malformed unless a part lies within a tensor, and its ranges are as in `Ranges`."""
    expect(len(part) == len(shape), f"a part with {len(part)} axes of a tensor with {len(shape)}")
    for ranges, size in zip(part, shape, strict=True):
        last = -1
        for begin, end in ranges:
            expect(last < begin < end <= size, f"the range {begin} to {end} on an axis of {size}")
            last = end

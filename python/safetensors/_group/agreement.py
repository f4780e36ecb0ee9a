"""Makes sure that the ranks of a group load the same files, and says what each of them takes."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple, TypeVar

from .communicator import Disagreement
from .parts import Taken

if TYPE_CHECKING:
    from .communicator import Communicator

T = TypeVar("T")

Packed = Tuple[List[Taken], bytes]
"""Distinct parts, and the number of the part of each tensor."""


def agree(comm: Communicator, lines: Sequence[str], value: T) -> List[T]:
    """Returns the values of all ranks.

    Args:
        comm: the ranks.
        lines: what has to be the same on all ranks.
        value: what need not.

    Raises:
        Disagreement: the lines differ.
    """
    told = comm.gather((list(lines), value))
    first = told[0][0]
    for rank, (theirs, _) in enumerate(told):
        for ours, other in itertools.zip_longest(first, theirs, fillvalue="no other file"):
            if ours != other:
                raise Disagreement(
                    f"the ranks load different files: rank {rank} has {other}, rank 0 has {ours}"
                )
    return [each for _, each in told]


def pack(taken: Sequence[Taken]) -> Packed:
    """Returns the parts in a form that is short to send: tensors of a model are much alike."""
    numbers: Dict[Taken, int] = {}
    found = array("i", (numbers.setdefault(each, len(numbers)) for each in taken))
    return list(numbers), found.tobytes()


def unpack(packed: Packed) -> List[Taken]:
    """Returns what `pack` was called with."""
    distinct, numbers = packed
    return [distinct[number] for number in array("i", numbers)]

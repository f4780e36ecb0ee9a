"""The types of the format, as in docs/format.md."""

from typing import Dict, Sequence

from .._core import _dtypes

DTYPES = _dtypes()
BITS: Dict[str, int] = {code: row["bits"] for code, row in DTYPES.items()}
"""Bits of an element. The order is the one in which writers group tensors."""


def element_count(shape: Sequence[int]) -> int:
    """Returns the number of elements. An axis of 0 is handled first, before the product grows."""
    if 0 in shape:
        return 0
    product = 1
    for dim in shape:
        product *= dim
    return product

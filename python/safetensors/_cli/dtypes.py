"""The types of the format; docs/format.md has the table."""

from typing import Dict, Sequence

from .._core import _dtypes

DTYPES = _dtypes()
BITS: Dict[str, int] = {code: row["bits"] for code, row in DTYPES.items()}
"""Bits of an element, in the order in which writers lay the types out."""

ORDER = {dtype: place for place, dtype in enumerate(BITS)}


def element_count(shape: Sequence[int]) -> int:
    """Elements of a tensor. A loop: an axis of 0 ends it before the product can grow."""
    if 0 in shape:
        return 0
    product = 1
    for dim in shape:
        product *= dim
    return product

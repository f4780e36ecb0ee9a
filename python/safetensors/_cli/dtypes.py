"""The types of the format; docs/format.md has the table."""

from typing import Sequence

BITS = {
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
    "F32": 32,
    "U32": 32,
    "I32": 32,
    "BF16": 16,
    "F16": 16,
    "U16": 16,
    "I16": 16,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I8": 8,
    "U8": 8,
    "F6_E3M2": 6,
    "F6_E2M3": 6,
    "F4": 4,
    "BOOL": 8,
}
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

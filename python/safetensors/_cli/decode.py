"""Values of every type of the format as NumPy arrays. Needs NumPy and nothing else."""

from typing import Any

import numpy as np

from .._core import _to_float
from .dtypes import BITS, DTYPES

Array = np.ndarray[Any, np.dtype[Any]]


def can_decode(dtype: str) -> bool:
    """Not F6: the format does not say in which order its bits are packed."""
    return BITS[dtype] != 6


def decoded(data: bytes, dtype: str) -> Array:
    """The elements of whole bytes, flat."""
    if dtype == "BOOL":
        truths: Array = np.frombuffer(data, np.uint8).astype(bool)
        return truths
    if DTYPES[dtype]["numpy"]:
        return np.frombuffer(data, DTYPES[dtype]["numpy"])
    floats: Array = np.frombuffer(_to_float(dtype, data), np.float32)
    # Small floats have few digits, of which a float32 would print more than there are.
    return floats if dtype == "BF16" else floats.astype(np.float64)

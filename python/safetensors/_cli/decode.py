"""Decodes values of the format's types to NumPy arrays. Needs only NumPy."""

from typing import Any

import numpy as np

from .._core import _to_float
from .._dtypes import BITS, DTYPES

Array = np.ndarray[Any, np.dtype[Any]]


def can_decode(dtype: str) -> bool:
    """Returns False for F6: the format does not say in which order its bits are packed."""
    return BITS[dtype] != 6


def decoded(data: bytes, dtype: str) -> Array:
    """Returns the elements as a flat array."""
    if dtype == "BOOL":
        truths: Array = np.frombuffer(data, np.uint8).astype(bool)
        return truths
    if DTYPES[dtype]["numpy"]:
        return np.frombuffer(data, DTYPES[dtype]["numpy"])
    floats: Array = np.frombuffer(_to_float(dtype, data), np.float32)
    # As a float32, a small float would print more digits than it has.
    return floats if dtype == "BF16" else floats.astype(np.float64)

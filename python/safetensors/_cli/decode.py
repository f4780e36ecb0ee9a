"""Values of every type of the format as NumPy arrays. Needs NumPy and nothing else."""

from typing import Any

import numpy as np

from .dtypes import BITS

Array = np.ndarray[Any, np.dtype[Any]]

_PLAIN = {
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    "F32": "<f4",
    "U32": "<u4",
    "I32": "<i4",
    "F16": "<f2",
    "U16": "<u2",
    "I16": "<i2",
    "U8": "u1",
    "I8": "i1",
    "BOOL": "?",
}

_SMALL_FLOATS = {
    "F8_E4M3": (4, 3, 7),
    "F8_E5M2": (5, 2, 15),
    "F8_E4M3FNUZ": (4, 3, 8),
    "F8_E5M2FNUZ": (5, 2, 16),
    "F4": (2, 1, 1),
}
"""Bits of the exponent, bits of the mantissa, bias. A sign bit comes first."""


def can_decode(dtype: str) -> bool:
    """Not F6: the format does not say in which order its bits are packed."""
    return BITS[dtype] != 6


def decoded(data: bytes, dtype: str) -> Array:
    """The elements of whole bytes, flat."""
    if dtype == "BOOL":
        truths: Array = np.frombuffer(data, np.uint8).astype(bool)
        return truths
    if dtype in _PLAIN:
        return np.frombuffer(data, _PLAIN[dtype])
    if dtype == "BF16":
        halves: Array = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        floats: Array = halves.view(np.float32)
        return floats
    codes = np.frombuffer(data, np.uint8)
    if BITS[dtype] == 4:
        codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(-1)
    values: Array = _table(dtype)[codes]
    return values


def _table(dtype: str) -> Array:
    """The value of each code."""
    if dtype == "F8_E8M0":
        values = np.ldexp(1.0, np.arange(256) - 127)
        values[255] = np.nan
        return values
    exponent_bits, mantissa_bits, bias = _SMALL_FLOATS[dtype]
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(
        exponent == 0,
        np.ldexp(fraction, 1 - bias),
        np.ldexp(1 + fraction, exponent - bias),
    )
    values *= sign
    if dtype.endswith("FNUZ"):
        values[0x80] = np.nan  # where -0 would be
    elif dtype == "F8_E4M3":
        values[[0x7F, 0xFF]] = np.nan
    elif dtype == "F8_E5M2":
        top = exponent == 31
        values[top] = np.where(fraction[top] == 0, sign[top] * np.inf, np.nan)
    return values

"""Weights of compressed-tensors and modelopt: packed from codes, and decoded by the formulas.

The formulas are restated here without the packages: with i a row and k a column,

    integers          (code[i, k] - zero[i, g(k)]) * scale[i, g(k)]
    nvfp4             E2M1[code] * (E4M3[scale] / global scale)
    nvfp4, modelopt   E2M1[code] * (E4M3[scale] * global scale)
    mxfp4             E2M1[code] * 2^(scale - 127)

in F32, in this order.
"""

from typing import Any

import numpy as np


def bits_of(codes: np.ndarray, bits: int) -> np.ndarray:
    """Returns the bits of unsigned codes, the lowest first, along the last axis."""
    spread = codes[..., None] >> np.arange(bits) & 1
    return spread.reshape(*codes.shape[:-1], -1).astype(np.uint8)


def words_of(bits: np.ndarray) -> np.ndarray:
    """Packs bits along the last axis, which is padded, to words."""
    rest = -bits.shape[-1] % 32
    bits = np.concatenate([bits, np.zeros((*bits.shape[:-1], rest), np.uint8)], -1)
    return np.packbits(bits, -1, bitorder="little").view("<i4")


def pack_dense(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs signed codes along the last axis into one stream of bits."""
    return words_of(bits_of(codes.astype(np.int64) + (1 << (bits - 1)), bits))


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs 32 // bits signed codes into each word, as older files do."""
    fields = 32 // bits
    codes = codes.astype(np.int64) + (1 << (bits - 1))
    rest = -codes.shape[-1] % fields
    codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], rest), np.int64)], -1)
    codes = codes.reshape(*codes.shape[:-1], -1, fields)
    words = (codes << (np.arange(fields) * bits)).sum(-1)
    return words.astype("<u4").view("<i4")


def pack_zeros(zeros: np.ndarray, bits: int) -> np.ndarray:
    """Packs signed zero points [..., N, G] down the rows."""
    return np.ascontiguousarray(np.swapaxes(pack_dense(np.swapaxes(zeros, -1, -2), bits), -1, -2))


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Packs codes of four bits, the first of a byte in its low nibble."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def spread(values: np.ndarray, columns: int, group: int) -> np.ndarray:
    """Repeats the values of groups for each column."""
    return np.repeat(values, group, -1)[..., :columns]


def integers(
    codes: np.ndarray, scales: np.ndarray, zeros: Any = 0, group_of: np.ndarray | None = None
) -> np.ndarray:
    """Decodes codes [..., N, K] with scales [..., N, G]."""
    columns = codes.shape[-1]
    group = -(-columns // scales.shape[-1])
    group_of = np.arange(columns) // group if group_of is None else group_of
    zeros = np.broadcast_to(zeros, scales.shape)[..., group_of].astype(np.int64)
    differences = (codes.astype(np.int64) - zeros).astype(np.float32)
    return differences * scales.astype(np.float32)[..., group_of]

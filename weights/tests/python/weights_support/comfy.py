"""The formulas of ComfyUI's quantised formats in NumPy, and markers."""

import json

import numpy as np

from weights_support.scheme_models import E2M1, E4M3, E8M0

F32 = np.float32
HADAMARD = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.int64)


def marker(**fields):
    """The tensor `comfy_quant` of a module."""
    return np.frombuffer(json.dumps(fields).encode(), np.uint8)


def header(layers):
    """The metadata of a file that says the same."""
    return {"_quantization_metadata": json.dumps({"layers": layers})}


def rounded_up(size, step):
    return -(-size // step) * step


def tiled(scales):
    """Puts scales into tiles of 128 x 4, with padding of other numbers."""
    *stack, rows, columns = scales.shape
    padded = np.full((*stack, rounded_up(rows, 128), rounded_up(columns, 4)), 0x77, np.uint8)
    padded[..., :rows, :columns] = scales
    tiles = padded.reshape(*stack, padded.shape[-2] // 128, 4, 32, padded.shape[-1] // 4, 4)
    axes = [*range(len(stack)), *(len(stack) + axis for axis in (0, 3, 2, 1, 4))]
    return np.ascontiguousarray(tiles.transpose(axes)).reshape(padded.shape)


def nvfp4(codes, scales, global_scale):
    factors = E4M3[scales] * np.asarray(global_scale, F32)
    return E2M1[codes] * np.repeat(factors, 16, -1)


def mxfp8(codes, scales):
    return E4M3[codes] * np.repeat(E8M0[scales], 32, -1)


def rotated(integers, scales, size):
    """Undoes the rotation of integers. The sums are exact."""
    matrix = HADAMARD
    while len(matrix) < size:
        matrix = np.kron(matrix, HADAMARD)
    sums = integers.astype(np.int64).reshape(*integers.shape[:-1], -1, size) @ matrix
    values = sums.reshape(integers.shape).astype(F32) * np.asarray(scales, F32)
    return values * F32(size**-0.5)


def low_first(codes):
    """Packs two codes of four bits in a byte."""
    codes = codes.astype(np.uint8) & 15
    return (codes[..., 0::2] | codes[..., 1::2] << 4).view(np.int8)


def high_first(codes):
    return (codes[..., 0::2] << 4 | codes[..., 1::2]).astype(np.uint8)


def six_bits(codes):
    """Packs the lower four bits of all codes, then the upper two."""
    upper = (codes >> 4).astype(np.uint8).reshape(len(codes), -1, 4)
    pairs = np.bitwise_or.reduce(upper << np.array([0, 2, 4, 6], np.uint8), axis=-1)
    return np.concatenate([low_first(codes).view(np.uint8), pairs], axis=1).view(np.int8)


def scaled_integers(codes, relative, group, codebook=None, middle=8):
    """The integers of asym_w4a8_int8, with relative scales of groups."""
    values = codebook[codes] if codebook is not None else codes.astype(F32) - F32(middle)
    scaled = values * np.repeat(relative, group, -1)
    return np.clip(np.rint(scaled), -127, 127).astype(np.int64)

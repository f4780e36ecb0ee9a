"""Stores matrices as quantisation schemes do, by their formulas in NumPy.

Each function takes a matrix and returns the tensors that take the place of its `.weight`, and the
values that these stand for. The constant of its name is the `quantization_config`.
"""

import json

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
E2M1 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
GROUP = 32


def grouped(array, group=GROUP):
    return array.reshape(len(array), -1, group)


def nearest(values, table):
    """Returns the index of the nearest entry of a table for each value."""
    return np.abs(values[..., None] - table).argmin(-1).astype(np.uint8)


def nibbles(codes):
    """Packs two codes a byte, the first in the low bits."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def words(codes):
    """Packs eight codes of the last axis a word, the first in the lowest bits."""
    eight = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)
    return np.bitwise_or.reduce(eight << np.arange(0, 32, 4, dtype=np.uint32), axis=-1).view("<i4")


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def fp8(array):
    """DeepSeek's: a scale for each block of 128 x 128, those at the edges smaller."""
    rows, columns = array.shape
    scales = np.empty((-(-rows // 128), -(-columns // 128)), np.float32)
    codes = np.empty(array.shape, E4M3)
    decoded = np.empty_like(array)
    for i, j in np.ndindex(scales.shape):
        block = np.s_[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
        scales[i, j] = np.abs(array[block]).max() / np.float32(448)
        codes[block] = (array[block] / scales[i, j]).astype(E4M3)
        decoded[block] = codes[block].astype(np.float32) * scales[i, j]
    return {".weight": codes, ".weight_scale_inv": scales}, decoded


def compressed(format_, **weights):
    """The configuration of compressed-tensors."""
    weights = {"symmetric": True, "num_bits": 4, **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "format": format_}}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


INT4 = compressed("pack-quantized", type="int", strategy="group", group_size=GROUP)


def int4(array):
    groups = grouped(array)
    scales = (np.abs(groups).max(-1) / 7.5).astype(ml_dtypes.bfloat16)
    scale = scales.astype(np.float32)[..., None]
    codes = np.clip(np.rint(groups / scale), -8, 7).astype(np.int64)
    parts = {
        ".weight_packed": words((codes + 8).reshape(array.shape)),
        ".weight_scale": scales,
        ".weight_shape": np.array(array.shape, np.int64),
    }
    return parts, (codes.astype(np.float32) * scale).reshape(array.shape)


MXFP4 = compressed("mxfp4-pack-quantized", type="float", strategy="group", group_size=32)


def mxfp4(array):
    groups = grouped(array)
    exponents = np.ceil(np.log2(np.abs(groups).max(-1) / 6)).astype(np.int64)
    scale = np.exp2(exponents.astype(np.float32))[..., None]
    codes = nearest(groups / scale, E2M1)
    parts = {
        ".weight_packed": nibbles(codes.reshape(array.shape)),
        ".weight_scale": (exponents + 127).astype(np.uint8),
    }
    return parts, (E2M1[codes] * scale).reshape(array.shape)


NVFP4 = compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16)


def nvfp4(array):
    """The scales of groups are divided by the global scale."""
    groups = grouped(array, 16)
    most = np.abs(groups).max(-1)
    global_scale = np.float32(6 * 448) / most.max()
    scales = (most / 6 * global_scale).astype(E4M3)
    scale = (scales.astype(np.float32) / global_scale)[..., None]
    codes = nearest(groups / scale, E2M1)
    parts = {
        ".weight_packed": nibbles(codes.reshape(array.shape)),
        ".weight_scale": scales,
        ".weight_global_scale": np.array([global_scale]),
    }
    return parts, (E2M1[codes] * scale).reshape(array.shape)


def affine(array):
    """Returns codes and zeros of 4 bits, F16 scales by group, and the values of the codes."""
    groups = grouped(array)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = ((high - low) / 15).astype(np.float16)
    scale = scales.astype(np.float32)
    zeros = np.clip(np.rint(-low / scale), 1, 15).astype(np.int64)  # v1 of GPTQ stores them less 1
    codes = np.clip(np.rint(groups / scale[..., None]) + zeros[..., None], 0, 15).astype(np.int64)
    decoded = (codes - zeros[..., None]).astype(np.float32) * scale[..., None]
    return codes.reshape(array.shape), zeros, scales, decoded.reshape(array.shape)


AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "zero_point": True,
    "version": "gemm",
}


def awq(array):
    """Columns of words: eight outputs a word, in the order 0 2 4 6 1 3 5 7."""
    codes, zeros, scales, decoded = affine(array)

    def packed(values):
        eight = values.T.reshape(values.shape[1], -1, 8)
        return words(eight[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(values.shape[::-1]))

    parts = {".qweight": packed(codes), ".qzeros": packed(zeros), ".scales": scales.T}
    return parts, decoded


GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": GROUP,
    "sym": False,
    "desc_act": True,
    "checkpoint_format": "gptq",
}


def gptq(array):
    """Columns of words: eight inputs a word. The inputs of a group are not neighbours."""
    order = np.random.default_rng(5).permutation(array.shape[1])
    codes, zeros, scales, decoded = affine(array[:, order])
    back = np.argsort(order)
    parts = {
        ".qweight": words(codes[:, back]).T,
        ".qzeros": words(zeros.T - 1),
        ".scales": scales.T,
        ".g_idx": (back // GROUP).astype(np.int32),
    }
    return parts, decoded[:, back]


NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": False,
}
NF4_VALUES = np.float32(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)


def nf4(array):
    """A scale for each 64 values of the flat matrix. The first of two codes has the high bits."""
    blocks = array.reshape(-1, 64)
    scales = np.abs(blocks).max(-1)
    codes = nearest(blocks / scales[:, None], NF4_VALUES)
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "bfloat16",
        "shape": list(array.shape),
    }
    parts = {
        ".weight": (codes[:, 0::2] << 4 | codes[:, 1::2]).reshape(-1, 1),
        ".weight.absmax": scales,
        ".weight.quant_map": NF4_VALUES,
        ".weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), "u1"),
    }
    return parts, (NF4_VALUES[codes] * scales[:, None]).reshape(array.shape)

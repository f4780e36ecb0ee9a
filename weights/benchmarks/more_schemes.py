"""Weights of square matrices in the other quantisation schemes and packings, without references."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from schemes import Case, Tensors, bf16, codes, scales

SIZE = 4096
WORDS = np.int32


def case(name: str, tensors: Tensors, **config: Any) -> Case:
    return Case(name, (SIZE, SIZE), tensors, config)


def e4m3(*shape: int) -> tuple[str, np.ndarray]:
    """Codes of F8_E4M3 that are no NaN."""
    return "F8_E4M3", codes(*shape, below=127)


def nibbles(kind: type = np.uint8) -> np.ndarray:
    return codes(SIZE, SIZE // 2, dtype=kind)


def signed() -> tuple[str, np.ndarray]:
    return "I8", codes(SIZE, SIZE, dtype=np.int8)


def exponents(*shape: int) -> np.ndarray:
    return codes(*shape, below=16) + 112


def half(*shape: int) -> tuple[str, np.ndarray]:
    return "F16", scales(*shape).astype(np.float16)


def f32(*shape: int) -> tuple[str, np.ndarray]:
    return "F32", scales(*shape)


ONE = ("F32", np.array(0.5, np.float32))
INPUTS = {".pre_quant_scale": f32(SIZE)}


def comfy() -> Iterator[Case]:
    def marked(name: str, tensors: Tensors, **marker: Any) -> Case:
        text = np.frombuffer(json.dumps(marker).encode(), np.uint8)
        return case(f"ComfyUI, {name}", tensors | {".comfy_quant": ("U8", text)})

    rotated = {"convrot": True, "convrot_groupsize": 256}
    yield case("ComfyUI, fp8_scaled", {".weight": e4m3(SIZE, SIZE), ".scale_weight": ONE})
    in_tiles = {
        ".weight": ("U8", nibbles()),
        ".weight_scale": e4m3(SIZE, SIZE // 16),
        ".weight_scale_2": ONE,
    }
    yield marked("nvfp4", in_tiles, format="nvfp4")
    yield marked("nvfp4, scales of inputs", in_tiles | INPUTS, format="nvfp4")
    powers = ("F8_E8M0", exponents(SIZE, SIZE // 32))
    yield marked("mxfp8", {".weight": e4m3(SIZE, SIZE), ".weight_scale": powers}, format="mxfp8")
    rows = {".weight": signed(), ".weight_scale": f32(SIZE, 1)}
    yield marked("int8_tensorwise", rows, format="int8_tensorwise")
    yield marked("int8_tensorwise, convrot", rows, format="int8_tensorwise", **rotated)
    packed = {".weight": ("I8", nibbles(np.int8)), ".weight_scale": f32(SIZE)}
    yield marked("convrot_w4a4", packed, format="convrot_w4a4", **rotated)
    relative = {
        ".weight": ("I8", nibbles(np.int8)),
        ".weight_s_rel": e4m3(SIZE, SIZE // 16),
        ".weight_s_channel": f32(SIZE),
    }
    book = {".weight_codebook": ("F32", np.linspace(-7, 7, 16).astype(np.float32))}
    six = {".weight": ("I8", codes(SIZE, SIZE // 4 * 3, dtype=np.int8))}
    w4a8 = {"format": "asym_w4a8_int8", "convrot_groupsize": 256}
    yield marked("asym_w4a8_int8", relative, **w4a8)
    yield marked("asym_w4a8_int8, codebook", relative | book, **w4a8)
    yield marked("asym_w4a8_int8, 6 bits", relative | six, **w4a8)
    zeros = {
        ".weight": ("I8", nibbles(np.int8)),
        ".weight_scale": half(SIZE // 64, SIZE),
        ".weight_zeros": half(SIZE // 64, SIZE),
    }
    yield marked("awq_w4a16", zeros, format="awq_w4a16")


def modelopt() -> Iterator[Case]:
    config = {"quant_method": "modelopt"}
    yield case(
        "modelopt, FP8",
        {".weight": e4m3(SIZE, SIZE), ".weight_scale": ONE},
        quant_algo="FP8",
        **config,
    )
    blocks = {".weight": e4m3(SIZE, SIZE), ".weight_scale": f32(SIZE // 128, 1, SIZE // 128, 1)}
    yield case("modelopt, FP8_PB_WO", blocks, quant_algo="FP8_PB_WO", **config)
    pairs = {
        ".weight": ("U8", codes(SIZE // 2, SIZE)),
        ".weight_scale": f32(SIZE, SIZE // 128),
    }
    awq = config | {"quant_algo": "W4A16_AWQ", "group_size": 128}
    yield case("modelopt, W4A16_AWQ", pairs, **awq)
    yield case("modelopt, W4A16_AWQ, scales of inputs", pairs | INPUTS, **awq)
    rows = {".weight": signed(), ".weight_scale": f32(SIZE)}
    yield case("modelopt, INT8_SQ, scales of inputs", rows | INPUTS, **config)
    groups = {
        ".weight": ("U8", nibbles()),
        ".weight_scale": e4m3(SIZE, SIZE // 16),
        ".weight_scale_2": ONE,
    }
    yield case("modelopt, NVFP4", groups, quant_algo="NVFP4", **config)
    yield case("modelopt, NVFP4, scales of inputs", groups | INPUTS, quant_algo="NVFP4", **config)


def quanto() -> Iterator[Case]:
    config = {"quant_method": "quanto"}
    rows = f32(SIZE, 1)
    yield case(
        "quanto, qfloat8", {".weight._data": e4m3(SIZE, SIZE), ".weight._scale": rows}, **config
    )
    e5m2 = ("F8_E5M2", codes(SIZE, SIZE, below=124))
    yield case("quanto, qfloat8_e5m2", {".weight._data": e5m2, ".weight._scale": rows}, **config)
    yield case("quanto, qint8", {".weight._data": signed(), ".weight._scale": rows}, **config)
    for bits in (4, 2):
        groups = SIZE * SIZE // 128
        yield case(
            f"quanto, qint{bits}",
            {
                ".weight._data._data": ("U8", codes(groups * bits // 8, 128)),
                ".weight._scale": f32(groups, 1),
                ".weight._shift": f32(groups, 1),
                ".bias": f32(SIZE),
            },
            **config,
        )


def compressed_tensors() -> Iterator[Case]:
    def grouped(bits: int, kind: str, group: int, form: str) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": kind, "group_size": group, "symmetric": True}
        groups = {"a": {"targets": ["Linear"], "weights": weights, "format": form}}
        return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}

    six = {
        ".weight_packed": ("U8", codes(SIZE, SIZE // 4 * 3)),
        ".weight_scale": ("U8", exponents(SIZE, SIZE // 32)),
    }
    yield case("MXFP6", six, **grouped(6, "float", 32, "mxfp6-pack-quantized"))
    for bits in (8, 3):
        words = {
            ".weight_packed": ("I32", codes(SIZE, SIZE * bits // 32, dtype=WORDS)),
            ".weight_scale": ("BF16", bf16(scales(SIZE, SIZE // 128))),
            ".weight_shape": ("I64", np.array([SIZE, SIZE])),
        }
        name = f"compressed-tensors, {bits} bits in groups of 128"
        yield case(name, words, **grouped(bits, "int", 128, "pack-quantized"))


def awq_gptq() -> Iterator[Case]:
    def stored(bits: int) -> Tensors:
        return {
            ".qweight": ("I32", codes(SIZE * bits // 32, SIZE, dtype=WORDS)),
            ".qzeros": ("I32", codes(SIZE // 128, SIZE * bits // 32, dtype=WORDS)),
            ".scales": half(SIZE // 128, SIZE),
        }

    for bits in (2, 3, 8):
        gptq = {"quant_method": "gptq", "bits": bits, "group_size": 128, "sym": False}
        yield case(f"GPTQ, {bits} bits in groups of 128", stored(bits), **gptq)
    order = np.random.default_rng(9).permutation(np.arange(SIZE, dtype=np.int32) // 128)
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
    yield case("GPTQ, 4 bits, desc_act", stored(4) | {".g_idx": ("I32", order)}, **gptq)
    rounded = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False}
    yield case("auto-round, GPTQ", stored(4), packing_format="auto_round:auto_gptq", **rounded)
    words = {
        ".qweight": ("I32", codes(SIZE, SIZE // 8, dtype=WORDS)),
        ".qzeros": ("I32", codes(SIZE // 128, SIZE // 8, dtype=WORDS)),
        ".scales": half(SIZE // 128, SIZE),
    }
    yield case("auto-round, AWQ", words, packing_format="auto_round:auto_awq", **rounded)


def more_cases() -> Iterator[Case]:
    for cases in (comfy, modelopt, quanto, compressed_tensors, awq_gptq):
        yield from cases()

"""Weights in the quantisation schemes of published models, and how reference packages decode them.

A case has the tensors of one weight, the `quantization_config`, and perhaps a function that imports
the reference package and returns a call that decodes the same tensors with it.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

Tensors = dict[str, tuple[str, np.ndarray]]


class Case(NamedTuple):
    name: str
    shape: tuple[int, ...]  # of the decoded weight
    tensors: Tensors  # by what follows the module's name: type and bytes, or values
    config: dict[str, Any]
    # Takes torch tensors.
    reference: Callable[[dict[str, Any]], Callable[[], object]] | None = None


def codes(*shape: int, dtype: type = np.uint8, below: int | None = None) -> np.ndarray:
    limits = np.iinfo(dtype)
    high = limits.max if below is None else below - 1
    return np.random.default_rng(7).integers(limits.min, high, shape, dtype, endpoint=True)


def scales(*shape: int) -> np.ndarray:
    return np.random.default_rng(8).uniform(0.001, 0.02, shape).astype(np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def fp8() -> Case:
    rows, columns = 7168, 2048  # DeepSeek V3, an expert

    def reference(tensors: dict[str, Any]) -> Callable[[], object]:
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        decode = Fp8Dequantize(None)._dequantize_one
        return lambda: decode(tensors[".weight"], tensors[".weight_scale_inv"])

    # No NaN: the codes 127 and 255.
    return Case(
        "FP8, blocks of 128 x 128",
        (rows, columns),
        {
            ".weight": ("F8_E4M3", codes(rows, columns, below=127)),
            ".weight_scale_inv": ("F32", scales(rows // 128, columns // 128)),
        },
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        reference,
    )


def compressed(name: str, format_: str, weights: dict[str, Any], tensors: Tensors) -> Case:
    """A case of compressed-tensors."""

    def reference(values: dict[str, Any]) -> Callable[[], object]:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
        compressor = BaseCompressor.load_from_registry(format_)
        state = {key.removeprefix("."): value for key, value in values.items()}
        return lambda: compressor.decompress(state, scheme)

    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "format": format_}}
    config = {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups}
    return Case(name, (ROWS, COLUMNS), tensors, config, reference)


ROWS, COLUMNS = 4096, 14336  # Llama 3 8B, down


def int4() -> Case:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    return compressed(
        "compressed-tensors, 4 bits in groups of 32",
        "pack-quantized",
        weights | {"group_size": 32},
        {
            ".weight_packed": ("I32", codes(ROWS, COLUMNS // 8, dtype=np.int32)),
            ".weight_scale": ("BF16", bf16(scales(ROWS, COLUMNS // 32))),
            ".weight_shape": ("I64", np.array([ROWS, COLUMNS])),
        },
    )


def nvfp4() -> Case:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}
    return compressed(
        "NVFP4 of compressed-tensors",
        "nvfp4-pack-quantized",
        weights | {"group_size": 16},
        {
            ".weight_packed": ("U8", codes(ROWS, COLUMNS // 2)),
            ".weight_scale": ("F8_E4M3", codes(ROWS, COLUMNS // 16, below=127)),
            ".weight_global_scale": ("F32", np.array([480.0], np.float32)),
        },
    )


def mxfp4() -> Case:
    experts, rows, columns = 4, 2880, 2880  # gpt-oss, down

    def reference(tensors: dict[str, Any]) -> Callable[[], object]:
        import torch
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        blocks, exponents = tensors["_blocks"], tensors["_scales"]
        return lambda: convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)

    return Case(
        "MXFP4 of gpt-oss",
        (experts, rows, columns),
        {
            "_blocks": ("U8", codes(experts, rows, columns // 32, 16)),
            "_scales": ("U8", codes(experts, rows, columns // 32, below=16) + 112),
        },
        {"quant_method": "mxfp4"},
        reference,
    )


def awq() -> Case:
    group = 128

    def reference(tensors: dict[str, Any]) -> Callable[[], object]:
        from awq.utils.packing_utils import dequantize_gemm

        parts = tensors[".qweight"], tensors[".qzeros"], tensors[".scales"]
        return lambda: dequantize_gemm(*parts, 4, group)

    return Case(
        "AWQ, 4 bits in groups of 128",
        (ROWS, COLUMNS),
        {
            ".qweight": ("I32", codes(COLUMNS, ROWS // 8, dtype=np.int32)),
            ".qzeros": ("I32", codes(COLUMNS // group, ROWS // 8, dtype=np.int32)),
            ".scales": ("F16", scales(COLUMNS // group, ROWS).astype(np.float16)),
        },
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
        },
        reference,
    )


def gptq() -> Case:
    group = 128

    def reference(tensors: dict[str, Any]) -> Callable[[], object]:
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear

        layer = TorchLinear(
            bits=4,
            group_size=group,
            sym=False,
            desc_act=False,
            in_features=COLUMNS,
            out_features=ROWS,
            bias=False,
        )
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            setattr(layer, part, tensors[f".{part}"])
        layer.post_init()
        return layer.dequantize_weight

    return Case(
        "GPTQ, 4 bits in groups of 128",
        (ROWS, COLUMNS),
        {
            ".qweight": ("I32", codes(COLUMNS // 8, ROWS, dtype=np.int32)),
            ".qzeros": ("I32", codes(COLUMNS // group, ROWS // 8, dtype=np.int32)),
            ".scales": ("F16", scales(COLUMNS // group, ROWS).astype(np.float16)),
            ".g_idx": ("I32", np.arange(COLUMNS, dtype=np.int32) // group),
        },
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": group,
            "sym": False,
            "desc_act": False,
            "checkpoint_format": "gptq",
        },
        reference,
    )


# The sixteen values of NF4 (QLoRA, appendix E).
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


def nf4() -> Case:
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [ROWS, COLUMNS]}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    absmax = scales(ROWS * COLUMNS // 64)
    table = np.array(NF4, np.float32)

    def reference(tensors: dict[str, Any]) -> Callable[[], object]:
        import torch
        from bitsandbytes.functional import QuantState, dequantize_4bit

        quant_state = QuantState(
            absmax=tensors[".weight.absmax"],
            shape=torch.Size((ROWS, COLUMNS)),
            code=tensors[".weight.quant_map"],
            blocksize=64,
            quant_type="nf4",
            dtype=torch.float32,
        )
        return lambda: dequantize_4bit(tensors[".weight"], quant_state)

    return Case(
        "NF4 of bitsandbytes, blocks of 64",
        (ROWS, COLUMNS),
        {
            ".weight": ("U8", codes(ROWS * COLUMNS // 2, 1)),
            ".weight.absmax": ("F32", absmax),
            ".weight.quant_map": ("F32", table),
            ".weight.quant_state.bitsandbytes__nf4": ("U8", text),
        },
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
        },
        reference,
    )


def cases() -> Iterator[Case]:
    """Makes one case at a time: the largest decodes to 235 MB."""
    for make in (fp8, int4, mxfp4, nvfp4, nf4, awq, gptq):
        yield make()

"""Writes a small model for each quantisation scheme: seeds of the fuzz target `schemes`.

    PYTHONPATH=weights/tests/python python weights/tests/data/schemes/make.py

The numbers are random; the names, types and shapes are those of published models, in small. Each
model is a folder with config.json and model.safetensors. Fuzzers take at most 4,096 bytes of a
seed, so each has few modules. Seeds of other formats, and of those that are refused, are in
../seeds.
"""

import json
from pathlib import Path

import numpy as np

from weights_support.data import Stored as Gguf
from weights_support.data import write_gguf
from weights_support.scheme_models import Stored, write_model

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)
ATTENTION = "model.layers.0.self_attn."
MLP = "model.layers.0.mlp."


def codes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.1, shape).astype(np.float32)


def save(name: str, tensors: dict[str, Stored], **quantization: object) -> None:
    tensors["model.norm.weight"] = scales(5)
    config = {"model_type": "llama", "quantization_config": quantization}
    write_model(HERE / name, tensors, config)


def main() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [4, 8]}
    tensors: dict[str, Stored] = {
        ATTENTION + "q_proj.weight": ("F8_E4M3", codes(8, 20)),
        ATTENTION + "q_proj.weight_scale_inv": scales(2, 3),
        ATTENTION + "k_proj.weight": ("F8_E4M3", codes(4, 20)),
        ATTENTION + "k_proj.weight_scale_inv": scales(1, 3),
        ATTENTION + "q_proj.input_scale": scales(1),
        MLP + "experts.down_proj": ("F8_E4M3", codes(2, 5, 9)),
        MLP + "experts.down_proj_scale_inv": scales(2, 2, 2),
    }
    save("fp8_blocks", tensors, **block)
    save(
        "fp8_rows",
        {
            ATTENTION + "q_proj.weight": ("F8_E5M2", codes(6, 7)),
            ATTENTION + "q_proj.weight_scale": scales(6, 1),
            ATTENTION + "k_proj.weight": ("F8_E4M3FNUZ", codes(6, 7)),
            ATTENTION + "k_proj.scale": scales(1),
            ATTENTION + "v_proj.weight": ("F8_E4M3", codes(3, 64)),
            ATTENTION + "v_proj.weight_scale": RNG.integers(120, 130, (3, 2), np.uint8),
        },
        quant_method="fp8",
    )
    experts = MLP + "experts."
    save(
        "mxfp4",
        {
            experts + "gate_up_proj_blocks": codes(2, 6, 1, 16),
            experts + "gate_up_proj_scales": RNG.integers(120, 130, (2, 6, 1), np.uint8),
            experts + "gate_up_proj_bias": scales(2, 6),
            experts + "down_proj_blocks": codes(2, 5, 2, 16),
            experts + "down_proj_scales": RNG.integers(120, 130, (2, 5, 2), np.uint8),
            experts + "down_proj_bias": scales(2, 5),
        },
        quant_method="mxfp4",
        modules_to_not_convert=["model.layers.*.self_attn"],
    )
    q, k = ATTENTION + "q_proj.", ATTENTION + "k_proj."
    state = '{"quant_type":"fp4","blocksize":64,"dtype":"bfloat16","shape":[4,40]}'
    values = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
    save(
        "bnb_fp4",
        {
            q + "weight": codes(80, 1),
            q + "weight.absmax": scales(3),
            q + "weight.quant_map": np.concatenate([values, -values]),
            q + "weight.quant_state.bitsandbytes__fp4": np.frombuffer(state.encode(), np.uint8),
            k + "weight": codes(3, 10).view(np.int8),
            k + "SCB": scales(3),
        },
        quant_method="bitsandbytes",
        load_in_4bit=True,
    )
    compressed_tensors()
    modelopt()
    awq_gptq()
    bitsandbytes()
    torchao()
    comfy()
    others()
    packs_and_blocks()
    rarer()


def group(
    target: str, bits: int, kind: str, size: int | None, symmetric: bool
) -> dict[str, object]:
    weights = {"num_bits": bits, "type": kind, "group_size": size, "symmetric": symmetric}
    return {"targets": [target], "weights": weights}


def compressed_tensors() -> None:
    order = RNG.permutation(np.arange(64, dtype=np.int32) // 32).astype(np.int32)
    q, k, v, o = (ATTENTION + f"{name}_proj." for name in "qkvo")
    save(
        "ct_int",
        {
            q + "weight_packed": codes(6, 32).view(np.int32),
            q + "weight_scale": scales(6, 2).astype(np.float16),
            q + "weight_zero_point": codes(1, 8).view(np.int32),
            q + "weight_g_idx": order,
            q + "weight_shape": np.array([6, 64], np.int64),
            k + "weight_packed": codes(5, 40).view(np.int32),
            k + "weight_scale": scales(5, 1),
            k + "weight_shape": np.array([5, 96], np.int64),
            v + "weight_packed": codes(5, 24).view(np.int32),
            v + "weight_scale": ("BF16", RNG.integers(15_000, 15_500, (5, 1), np.uint16)),
            v + "weight_shape": np.array([5, 64], np.int64),
            o + "weight": codes(5, 33).view(np.int8),
            o + "weight_scale": scales(5, 1),
            o + "weight_zero_point": codes(5, 1).view(np.int8),
        },
        quant_method="compressed-tensors",
        format="mixed-precision",
        config_groups={
            "a": group("re:.*self_attn\\.(q|x)_proj$", 4, "int", 32, False),
            "b": group("re:model.layers.[0-9]+.*v_proj", 3, "int", None, True),
            "c": group("Linear", 3, "int", None, True),
        },
        ignore=["lm_head"],
    )
    save(
        "ct_fp4",
        {
            q + "weight_packed": codes(5, 16),
            q + "weight_scale": ("F8_E4M3", codes(5, 2)),
            q + "weight_global_scale": scales(1),
            q + "input_global_scale": scales(1),
            k + "weight_packed": codes(5, 32),
            k + "weight_scale": RNG.integers(120, 130, (5, 2), np.uint8),
        },
        quant_method="compressed-tensors",
        format="mixed-precision",
        config_groups={"a": group("Linear", 4, "float", 16, True)},
    )


def modelopt() -> None:
    experts = MLP + "experts.down_proj."
    save(
        "modelopt",
        {
            experts + "weight": codes(2, 5, 16),
            experts + "weight_scale": ("F8_E4M3", codes(2, 5, 2)),
            experts + "weight_scale_2": scales(2),
            ATTENTION + "q_proj.weight": ("F8_E4M3", codes(5, 7)),
            ATTENTION + "q_proj.weight_scale": scales(1),
            ATTENTION + "q_proj.input_scale": scales(1),
        },
        quant_method="modelopt",
        quant_algo="MIXED_PRECISION",
    )


def words(*shape: int) -> np.ndarray:
    return RNG.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)


def awq_gptq() -> None:
    down = MLP + "down_proj."
    tensors: dict[str, Stored] = {
        down + "qweight": words(64, 3),
        down + "qzeros": words(2, 3),
        down + "scales": scales(2, 24).astype(np.float16),
    }
    save("awq", tensors, quant_method="awq", bits=4, group_size=32, version="gemm")
    group_of = RNG.permutation(np.arange(64, dtype=np.int32) // 32)
    tensors = {
        down + "qweight": words(8, 24),
        down + "qzeros": words(2, 3),
        down + "scales": scales(2, 24).astype(np.float16),
        down + "g_idx": group_of,
    }
    save("gptq", tensors, quant_method="gptq", bits=4, group_size=32, desc_act=True)


def bitsandbytes() -> None:
    query = ATTENTION + "q_proj.weight"
    nf4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453]
    nf4 += [-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0]
    nf4 += [0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224]
    nf4 += [0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [6, 33]}
    nested = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
    text = json.dumps(state | nested).encode()
    tensors: dict[str, Stored] = {
        query: codes(99, 1),
        query + ".absmax": codes(4),
        query + ".quant_map": np.array(nf4, np.float32),
        query + ".nested_absmax": scales(1),
        query + ".nested_quant_map": np.linspace(-1, 1, 256, dtype=np.float32),
        query + ".quant_state.bitsandbytes__nf4": np.frombuffer(text, np.uint8),
        ATTENTION + "k_proj.weight": codes(5, 33).view(np.int8),
        ATTENTION + "k_proj.SCB": scales(5),
    }
    save("bitsandbytes", tensors, quant_method="bitsandbytes")


def torchao() -> None:
    types: dict[str, dict[str, Stored]] = {
        "Float8Tensor": {"qdata": ("F8_E4M3", codes(4, 64)), "scale": scales(4, 1)},
        "Int8Tensor": {
            "qdata": codes(4, 64).view(np.int8),
            "scale": scales(4, 2),
            "zero_point": codes(4, 2).view(np.int8),
        },
        "MXTensor": {"qdata": codes(4, 32), "scale": ("F8_E8M0", codes(4, 2))},
        "NVFP4Tensor": {
            "qdata": codes(4, 32),
            "scale": ("F8_E4M3", codes(4, 4)),
            "per_tensor_scale": scales(),
        },
    }
    blocks = {"Float8Tensor": [1, 64], "Int8Tensor": [1, 32], "MXTensor": 32, "NVFP4Tensor": 16}
    metadata: dict[str, str] = {}
    tensors: dict[str, Stored] = {}
    for letter, (name, parts) in zip("qkvo", types.items(), strict=True):
        module = f"{ATTENTION}{letter}_proj."
        data: dict[str, object] = {"block_size": blocks[name], "is_swizzled_scales": False}
        if name == "MXTensor":
            data["elem_dtype"] = {"_type": "torch.dtype", "_data": "float4_e2m1fn_x2"}
        metadata[module + "weight"] = json.dumps({"_type": name, "_data": data})
        tensors |= {f"{module}_weight_{part}": stored for part, stored in parts.items()}
    metadata["tensor_names"] = json.dumps(list(metadata))
    config = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
    write_model(HERE / "torchao", tensors, config, metadata=metadata)


def marker(**fields: object) -> np.ndarray:
    return np.frombuffer(json.dumps(fields).encode(), np.uint8)


def comfy() -> None:
    """Modules of ComfyUI: all but one with a marker of their own, that one in the header."""
    small = {"convrot_groupsize": 16}
    modules: dict[str, dict[str, Stored]] = {
        "nvfp4": {
            "weight": codes(16, 16),
            "weight_scale": ("F8_E4M3", codes(128, 4)),
            "weight_scale_2": scales(),
            "pre_quant_scale": scales(32),
            "bias": scales(13),
            "comfy_quant": marker(format="nvfp4"),
        },
        "int8": {
            "weight": codes(5, 32).view(np.int8),
            "weight_scale": scales(5, 1),
            "comfy_quant": marker(format="int8_tensorwise", convrot=True, **small),
        },
        "w4a4": {
            "weight": codes(5, 32).view(np.int8),
            "weight_scale": scales(5),
            "comfy_quant": marker(format="convrot_w4a4", convrot_groupsize=64),
        },
        "w4a8": {
            "weight": codes(5, 24).view(np.int8),
            "weight_s_rel": ("F8_E4M3", codes(5, 2)),
            "weight_s_channel": scales(5),
            "comfy_quant": marker(format="asym_w4a8_int8", params=small),
        },
        "codebook": {
            "weight": codes(5, 16).view(np.int8),
            "weight_s_rel": scales(5, 2),
            "weight_s_channel": scales(5),
            "weight_codebook": scales(16),
            "comfy_quant": marker(format="asym_w4a8_int8", **small),
        },
        "awq": {
            "weight": codes(5, 16).view(np.int8),
            "weight_scale": scales(2, 5).astype(np.float16),
            "weight_zeros": scales(2, 5).astype(np.float16),
            "comfy_quant": marker(format="awq_w4a16", group_size=16),
        },
        "mxfp8": {
            "weight": ("F8_E4M3", codes(32, 32)),
            "weight_scale": ("F8_E8M0", codes(128, 4)),
        },
        "fp8": {
            "weight": ("F8_E4M3", codes(5, 8)),
            "scale_weight": scales(5, 2, 1),
            "scale_weight_tensor": scales(),
        },
    }
    for name, parts in modules.items():
        module = f"model.diffusion_model.{name}"
        tensors = {f"{module}.{role}": stored for role, stored in parts.items()}
        metadata = None
        if name == "mxfp8":
            layers = {"layers": {name: {"format": "mxfp8"}}}
            metadata = {"_quantization_metadata": json.dumps(layers)}
        if name == "fp8":
            tensors["scaled_fp8"] = ("F8_E4M3", codes(2))
        write_model(HERE / f"comfy_{name}", tensors, {"model_type": "llama"}, metadata=metadata)


def others() -> None:
    q, k = ATTENTION + "q_proj.", ATTENTION + "k_proj."
    save(
        "int4",
        {
            q + "weight": codes(3, 32),
            q + "weight_scale": scales(6, 2),
            q + "weight_scale_2": scales(1),
            q + "pre_quant_scale": scales(32),
            k + "weight": codes(6, 32).view(np.int8),
            k + "weight_scale": scales(6),
            k + "pre_quant_scale": scales(32),
        },
        quant_method="modelopt",
        quant_algo="W4A8_AWQ",
        group_size=16,
    )
    save(
        "mxfp6",
        {
            q + "weight_packed": codes(5, 48),
            q + "weight_scale": RNG.integers(120, 130, (5, 2), np.uint8),
        },
        quant_method="compressed-tensors",
        format="mxfp6-pack-quantized",
        config_groups={"a": group("Linear", 6, "float", 32, True)},
    )
    save(
        "quanto",
        {
            q + "weight._data": ("F8_E4M3", codes(5, 8)),
            q + "weight._scale": scales(5, 1),
            q + "input_scale": scales(1),
            k + "weight._data": codes(5, 8).view(np.int8),
            k + "weight._scale": scales(5, 1),
            MLP + "up_proj.weight._data._data": codes(8, 8),
            MLP + "up_proj.weight._scale": scales(15, 1),
            MLP + "up_proj.weight._shift": scales(15, 1),
            MLP + "up_proj.bias": scales(5),
        },
        quant_method="quanto",
    )
    save(
        "fp8_pb_wo",
        {
            q + "weight": ("F8_E4M3", codes(5, 9)),
            q + "weight_scale": scales(2, 1, 3, 1),
        },
        quant_method="modelopt",
        quant_algo="FP8_PB_WO",
        weight_block_size=[4, 4],
    )
    save(
        "modelopt_awq",
        {
            q + "weight": codes(5, 16),
            q + "weight_scale": ("F8_E4M3", codes(5, 2)),
            q + "weight_scale_2": scales(),
            q + "pre_quant_scale": scales(32),
        },
        quant_method="modelopt",
        quant_algo="NVFP4_AWQ",
    )
    down = MLP + "down_proj."
    save(
        "auto_round",
        {
            down + "qweight": words(64, 3),
            down + "qzeros": words(2, 3),
            down + "scales": scales(2, 24).astype(np.float16),
        },
        quant_method="auto-round",
        bits=4,
        group_size=32,
        packing_format="auto_round:auto_awq",
    )
    save(
        "gptq_3_bits",
        {
            down + "qweight": words(6, 32),
            down + "qzeros": words(2, 3),
            down + "scales": scales(2, 32).astype(np.float16),
        },
        quant_method="gptq",
        bits=3,
        group_size=32,
        sym=False,
    )


def packs_and_blocks() -> None:
    """Models of other formats, which the target reads too."""
    seeds = HERE.parent / "seeds"
    parts: dict[str, Stored] = {
        "m.weight": RNG.integers(0, 1 << 32, (3, 12), np.uint32),
        "m.scales": scales(3, 2).astype(np.float16),
        "m.biases": scales(3, 2).astype(np.float16),
    }
    for mode, bits, group in (("affine", 6, 32), ("nvfp4", 4, 16)):
        if mode == "nvfp4":
            parts = {
                "m.weight": RNG.integers(0, 1 << 32, (3, 8), np.uint32),
                "m.scales": codes(3, 4),
            }
        quantization = {"group_size": group, "bits": bits, "mode": mode}
        config = {"model_type": "llama", "quantization": quantization}
        write_model(seeds / f"mlx_{mode}", parts, config)
    write_gguf(
        seeds / "nvfp4_scale.gguf",
        {"general.architecture": "qwen3moe"},
        {
            "blk.0.ffn_gate_exps.weight": Gguf(40, (2, 3, 64), codes(6, 36).tobytes()),
            "blk.0.ffn_gate_exps.scale": scales(2),
            "blk.0.attn_q.weight": Gguf(8, (3, 32), codes(3, 34).tobytes()),
            "blk.0.attn_q.scale": scales(1),
        },
    )


def rarer() -> None:
    """Older and rarer spellings, and formats that are refused by name."""
    q, k, v = (ATTENTION + f"{name}_proj." for name in "qkv")
    fp8: Stored = ("F8_E4M3", codes(5, 8))
    save(
        "fp8_mistral",
        {q + "weight": fp8, q + "qscale_weight": scales(), q + "qscale_act": scales()},
        quant_method="fp8",
    )
    save(
        "mxfp4_plain",
        {
            q + "weight": codes(5, 32),
            q + "weight_scale": RNG.integers(120, 130, (5, 2), np.uint8),
            k + "weight": codes(5, 16).view(np.int8),
            k + "scale": ("F8_E8M0", RNG.integers(120, 130, (5, 1), np.uint8)),
        },
        quant_method="modelopt",
        quant_algo="MXFP4",
    )
    save(
        "../seeds/ct_sparse",
        {
            q + "compressed": scales(9),
            q + "bitmask": codes(5, 1),
            q + "row_offsets": np.array([[0], [2], [4], [6], [8]], np.int64),
            q + "shape": np.array([5, 8], np.int64),
            k + "weight_packed": words(4, 8),
            k + "scale_packed": scales(1, 8).astype(np.float16),
            k + "meta": codes(8, 2).view(np.int16),
            k + "weight_shape": np.array([8, 32], np.int64),
        },
        quant_method="compressed-tensors",
        format="mixed-precision",
    )
    metadata = {}
    for module, kind in ((q, "IntxUnpackedToInt8Tensor"), (k, "MXTensor")):
        data: dict[str, object] = {"block_size": [1, 32] if module == q else 32}
        if module == k:
            data["elem_dtype"] = {"_type": "torch.dtype", "_data": "float8_e4m3fn"}
        metadata[module + "weight"] = json.dumps({"_type": kind, "_data": data})
    metadata["tensor_names"] = json.dumps(list(metadata))
    tensors: dict[str, Stored] = {
        q + "weight:qdata": codes(4, 64).view(np.int8),
        q + "weight:scale": scales(4, 2),
        q + "weight:zero_point": codes(4, 2).view(np.int8),
        k + "weight:qdata": ("F8_E4M3", codes(4, 64)),
        k + "weight:scale": ("F8_E8M0", codes(4, 2)),
    }
    config = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
    write_model(HERE / "torchao_colon", tensors, config, metadata=metadata)
    tensors = {}
    for module, kind, stored in (
        (q, "float8_e4m3fn", fp8),
        (k, "float8_e5m2", ("F8_E5M2", codes(5, 8))),
        (v, "int8_tensorwise", codes(5, 8).view(np.int8)),
    ):
        tensors[module + "weight"] = stored
        tensors[module + "weight_scale"] = scales()
        tensors[module + "comfy_quant"] = marker(format=kind)
    write_model(HERE / "comfy_scaled", tensors, {"model_type": "llama"})
    data = {"block_size": 16, "is_swizzled_scales": True}
    metadata = {q + "weight": json.dumps({"_type": "NVFP4Tensor", "_data": data})}
    metadata["tensor_names"] = json.dumps([q + "weight"])
    tensors = {
        q + "_weight_qdata": codes(4, 32),
        q + "_weight_scale": ("F8_E4M3", codes(32, 16)),
        q + "_weight_per_tensor_scale": scales(),
    }
    write_model(HERE / "torchao_tiles", tensors, config, metadata=metadata)
    mlp = "block.0.mlp.mlp1_weight."  # OpenAI's own names
    tensors = {
        mlp + "blocks": codes(2, 6, 1, 16),
        mlp + "scales": RNG.integers(120, 130, (2, 6, 1), np.uint8),
        MLP + "experts.down_proj_blocks": codes(2, 5, 2, 16),
        MLP + "experts.down_proj_scales": RNG.integers(120, 130, (2, 5, 2), np.uint8),
    }
    write_model(HERE / "mxfp4_openai", tensors, {"num_hidden_layers": 1})


if __name__ == "__main__":
    main()

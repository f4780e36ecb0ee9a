"""Writes a small model for each quantisation scheme: seeds of the fuzz target `schemes`.

    PYTHONPATH=tests/python python tests/data/weights/schemes/make.py

The numbers are random; the names, types and shapes are those of published models, in small. Each
model is a folder with config.json and model.safetensors.
"""

from pathlib import Path

import numpy as np

from support.scheme_models import Stored, write_model

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)
ATTENTION = "model.layers.0.self_attn."
MLP = "model.layers.0.mlp."


def codes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.1, shape).astype(np.float32)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(-(2**31), 2**31, shape, np.int32)


def bytes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


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
    group = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 16, "strategy": "group"}
    tensors = {
        q + "weight_packed": words(5, 4),
        q + "weight_scale": scales(5, 2),
        q + "weight_shape": np.array([5, 32]),
        k + "weight_packed": words(5, 4),
        k + "weight_scale": scales(5, 2),
        k + "weight_shape": np.array([5, 32]),
        k + "weight_g_idx": (np.arange(32, dtype=np.int32) * 5 % 32) // 16,
    }
    groups = {"group_0": {"targets": ["Linear"], "weights": group}}
    save(
        "ct_int",
        tensors,
        quant_method="compressed-tensors",
        format="pack-quantized",
        config_groups=groups,
    )
    save(
        "nvfp4",
        {
            q + "weight_packed": codes(3, 16),
            q + "weight_scale": ("F8_E4M3", codes(3, 2)),
            q + "weight_global_scale": scales(1),
            k + "weight": codes(3, 16),
            k + "weight_scale": ("F8_E4M3", codes(3, 2)),
            k + "weight_scale_2": scales(1)[0],
        },
        quant_method="compressed-tensors",
        format="nvfp4-pack-quantized",
    )
    save(
        "int8",
        {
            q + "weight": codes(3, 10).view(np.int8),
            q + "weight_scale": scales(3, 1),
            k + "weight": codes(3, 10).view(np.int8),
            k + "weight_scale": scales(1),
        },
        quant_method="compressed-tensors",
        format="int-quantized",
    )
    half = np.float16
    save(
        "awq",
        {
            q + "qweight": words(32, 2),
            q + "qzeros": words(2, 2),
            q + "scales": scales(2, 16).astype(half),
        },
        quant_method="awq",
        version="gemm",
        bits=4,
        group_size=16,
        zero_point=True,
    )
    save(
        "gptq",
        {
            q + "qweight": words(4, 16),
            q + "qzeros": words(2, 2),
            q + "scales": scales(2, 16).astype(half),
            q + "g_idx": (np.arange(32, dtype=np.int32) * 5 % 32) // 16,
        },
        quant_method="gptq",
        checkpoint_format="gptq",
        bits=4,
        group_size=16,
        sym=True,
    )
    state = '{"quant_type":"fp4","blocksize":64,"dtype":"bfloat16","shape":[4,40]}'
    values = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
    save(
        "bnb",
        {
            q + "weight": codes(80, 1),
            q + "weight.absmax": scales(3),
            q + "weight.quant_map": np.concatenate([values, -values]),
            q + "weight.quant_state.bitsandbytes__fp4": bytes_of(state),
            k + "weight": codes(3, 10).view(np.int8),
            k + "SCB": scales(3),
        },
        quant_method="bitsandbytes",
        load_in_4bit=True,
    )


if __name__ == "__main__":
    main()

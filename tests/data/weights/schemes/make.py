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


if __name__ == "__main__":
    main()

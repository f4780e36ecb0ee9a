"""Tiny models of transformers, and their GGUF files as llama.cpp's own converter writes them.

The converter is in the sources of llama.cpp, whose folder SAFETENSORS_LLAMA_CPP names; PYTHONPATH
has their gguf-py.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = os.environ.get("SAFETENSORS_LLAMA_CPP")

# No two sizes are equal, and a head is not hidden_size / heads.
COMMON = {
    "vocab_size": 29,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LOCAL_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
MLA = {
    **ROUTED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_group": 2,
    "topk_group": 1,
}
LOW_RANK = {"q_lora_rank": 18, "head_dim": None}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 28}
GEMMA_4 = {
    "vocab_size_per_layer_input": 29,
    "global_head_dim": 24,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
}
TIED = {"tie_word_embeddings": True}


class Tiny(NamedTuple):
    """A class of transformers, without its last word, and the arguments of its configuration."""

    name: str
    changes: dict[str, Any]
    config: str = ""
    """The class of the configuration, where it has another name."""
    architecture: str = ""
    """The architecture of GGUF, where it is not the key."""


#: By a name, which is the architecture of GGUF unless the model states another.
MODELS = {
    "afmoe": Tiny("Afmoe", {**EXPERTS, "num_dense_layers": 1}),
    "arcee": Tiny("Arcee", {}),
    "cohere2": Tiny("Cohere2", {**TIED, "rotary_pct": 1.0}),
    "cohere2moe": Tiny("Cohere2Moe", {**EXPERTS, "num_shared_experts": 1}),
    "command-r": Tiny("Cohere", {**TIED, "use_qk_norm": True}),
    "deepseek2": Tiny("DeepseekV3", {**MLA, **LOW_RANK}),
    "deepseek2-v2": Tiny(
        "DeepseekV2",
        {**MLA, "q_lora_rank": None, "head_dim": None, "topk_method": "greedy"},
        architecture="deepseek2",
    ),
    "deepseek2-glm": Tiny("Glm4MoeLite", {**MLA, "q_lora_rank": 18}, architecture="deepseek2"),
    "deepseek2-youtu": Tiny("Youtu", {**MLA, **LOW_RANK}, architecture="deepseek2"),
    "dots1": Tiny("Dots1", {**ROUTED, "n_shared_experts": 1}),
    "ernie4_5": Tiny("Ernie4_5", {}),
    "ernie4_5-moe": Tiny(
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "exaone-moe": Tiny("ExaoneMoe", {**EXPERTS}),
    "exaone4": Tiny("Exaone4", {}),
    "gemma": Tiny("Gemma", {**TIED}),
    "gemma2": Tiny("Gemma2", {**TIED, "query_pre_attn_scalar": 16}),
    "gemma3": Tiny("Gemma3", {**TIED}, "Gemma3TextConfig"),
    "gemma4": Tiny("Gemma4", {**GEMMA_4, "hidden_size_per_layer_input": 6}, "Gemma4TextConfig"),
    "gemma4-moe": Tiny(
        "Gemma4",
        {
            **GEMMA_4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
        "Gemma4TextConfig",
        "gemma4",
    ),
    "glm4": Tiny("Glm4", {}),
    "glm4moe": Tiny("Glm4Moe", {**ROUTED, "use_qk_norm": True}),
    "gpt-oss": Tiny("GptOss", {**LOCAL_EXPERTS, "max_position_embeddings": 131072}),
    "granite": Tiny("Granite", {}),
    "granitemoe": Tiny("GraniteMoe", {**LOCAL_EXPERTS}),
    "hunyuan-dense": Tiny("HunYuanDenseV1", {}),
    "hunyuan-moe": Tiny(
        "HunYuanMoEV1",
        {
            "num_experts": 5,
            "moe_topk": [2, 2],
            "moe_intermediate_size": [48, 48],
            "num_shared_expert": [1, 1],
        },
    ),
    "hy_v3": Tiny("HYV3", {**EXPERTS}),
    "jais2": Tiny("Jais2", {}),
    "laguna": Tiny("Laguna", {**EXPERTS}),
    "lfm2": Tiny(
        "Lfm2",
        {
            "layer_types": ["conv", "full_attention"],
            "full_attn_idxs": [1],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2moe": Tiny(
        "Lfm2Moe",
        {**EXPERTS, **TIED, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "llama": Tiny("Llama", {}),
    "llama4": Tiny(
        "Llama4",
        {**LOCAL_EXPERTS, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 40},
        "Llama4TextConfig",
    ),
    "mixtral": Tiny("Mixtral", {**LOCAL_EXPERTS}, architecture="llama"),
    "minimax-m2": Tiny("MiniMaxM2", {**LOCAL_EXPERTS, "rotary_dim": 8}),
    "mistral3": Tiny("Ministral3", {}),
    "nemotron": Tiny("Nemotron", {}),
    "olmo": Tiny("Olmo", {}),
    "olmo2": Tiny("Olmo2", {}),
    "olmoe": Tiny("Olmoe", {**EXPERTS, "head_dim": 8}),
    "phi2": Tiny("Phi", {}),
    "phi3": Tiny("Phi3", {}),
    "qwen2": Tiny("Qwen2", {}),
    "qwen2moe": Tiny("Qwen2Moe", {**SHARED}),
    "qwen3": Tiny("Qwen3", {}),
    "qwen35": Tiny("Qwen3_5", {**DELTA_NET}, "Qwen3_5TextConfig"),
    "qwen35moe": Tiny("Qwen3_5Moe", {**SHARED, **DELTA_NET}, "Qwen3_5MoeTextConfig"),
    "qwen3moe": Tiny("Qwen3Moe", {**EXPERTS}),
    "qwen3next": Tiny("Qwen3Next", {**SHARED, **DELTA_NET}),
    "seed_oss": Tiny("SeedOss", {}),
    "smollm3": Tiny("SmolLM3", {}),
    "starcoder2": Tiny("Starcoder2", {}),
}


def make(tiny: Tiny, folder: Path) -> Any:
    """Returns a model with random weights, also of norms and biases, saved in the folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, f"{tiny.name}ForCausalLM")
    settings = {**COMMON, **tiny.changes}
    config = getattr(transformers, tiny.config or f"{tiny.name}Config")(**settings)
    model = kind(config).eval()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                values.add_(torch.rand_like(values))
            elif values.dim() == 1 and isinstance(values, torch.nn.Parameter):
                # Steps of which one more and one less are exact.
                values.add_((torch.randn_like(values) * 100).round() / 1024)
    model.save_pretrained(folder)
    # The converters of Gemma count the tokens.
    tokens = {str(i): i for i in range(settings["vocab_size"])}
    table = {"model": {"vocab": tokens}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(table))
    return model


def to_gguf(folder: Path, target: Path) -> Path:
    """Converts a checkpoint to a GGUF file of F32, without a vocabulary."""
    assert SOURCES is not None
    sys.path.insert(0, SOURCES)
    try:
        import conversion
        import gguf
        import torch

        hparams = conversion.ModelBase.load_hparams(folder, False)
        name = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
        with torch.inference_mode(), contextlib.redirect_stdout(sys.stderr):
            kind = conversion.get_model_class(name)
            kind.no_mtp = True  # it takes a configuration without a number for one layer more
            converter = kind(folder, gguf.LlamaFileType.ALL_F32, target)
            getattr(converter, "impl", converter).set_vocab = lambda: None
            converter.write()
    finally:
        sys.path.remove(SOURCES)
    return target

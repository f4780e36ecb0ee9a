"""Fields of the configuration table from config.json and from GGUF metadata."""

import json
import math

import numpy as np
import pytest

from safetensors.weights import WeightsError, open_weights
from weights_support.data import write_gguf, write_hf

EMPTY = {
    "rope_dim": None,
    "rope_theta_local": None,
    "rope_sections": [],
    "v_head_dim": None,
    "q_lora_rank": None,
    "kv_lora_rank": None,
    "qk_nope_head_dim": None,
    "qk_rope_head_dim": None,
    "shared_ffn_dim": None,
    "n_shared_experts": None,
    "first_dense_layers": None,
    "expert_weights_scale": None,
    "expert_gating": None,
    "activation": None,
    "query_scale": None,
    "embedding_scale": None,
    "residual_scale": None,
    "logit_scale": None,
    "layer_kinds": [],
    "sliding_window_pattern": None,
    "rope_scaling": None,
}
NO_SCALING = {
    "factor": None,
    "original_max_position_embeddings": None,
    "low_freq_factor": None,
    "high_freq_factor": None,
    "attention_factor": None,
    "beta_fast": None,
    "beta_slow": None,
    "ext_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
    "long_factor": [],
    "short_factor": [],
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "hidden_act": "silu",
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
}
MLA = {
    "rope_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "n_shared_experts": 1,
    "first_dense_layers": 3,
    "expert_weights_scale": 2.5,
    "expert_gating": "sigmoid",
}
HF = {
    "deepseek": (
        DEEPSEEK,
        MLA
        | {
            "activation": "silu",
            "rope_scaling": NO_SCALING
            | {
                "type": "yarn",
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
        },
    ),
    "gemma2": (
        {
            "model_type": "gemma2",
            "hidden_act": "gelu",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
        },
        {"activation": "gelu_pytorch_tanh", "query_scale": 1 / 16},
    ),
    "gemma3 of transformers 4": (
        {
            "model_type": "gemma3_text",
            "rope_local_base_freq": 10000.0,
            "sliding_window_pattern": 6,
        },
        {"rope_theta_local": 10000.0, "sliding_window_pattern": 6},
    ),
    "gemma3 of transformers 5": (
        {
            "model_type": "gemma3_text",
            "layer_types": ["sliding_attention", "full_attention"],
            "_sliding_window_pattern": 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        {
            "rope_theta_local": 10000.0,
            "layer_kinds": ["sliding", "full"],
            "sliding_window_pattern": 2,
            "rope_scaling": NO_SCALING | {"type": "linear", "factor": 8.0},
        },
    ),
    "exaone4": ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, {}),
    "a pattern as a list": ({"model_type": "plamo3", "sliding_window_pattern": [1, 0]}, {}),
    "kinds of layers": (
        {
            "model_type": "lfm2",
            "layer_types": ["conv", "mamba", "recurrent", "linear_attention", "attention", "new"],
        },
        {"layer_kinds": ["conv", "recurrent", "recurrent", "linear", "full", "other"]},
    ),
    "granite": (
        {
            "model_type": "granite",
            "attention_multiplier": 0.0625,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.25,
            "logits_scaling": 8.0,
        },
        {
            "query_scale": 0.0625,
            "embedding_scale": 12.0,
            "residual_scale": 0.25,
            "logit_scale": 0.125,
        },
    ),
    "minicpm": (
        {
            "model_type": "minicpm",
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "scale_emb": 12,
            "scale_depth": 1.5,
            "dim_model_base": 256,
        },
        {"embedding_scale": 12.0, "residual_scale": 0.75, "logit_scale": 0.25},
    ),
    "cohere": ({"model_type": "cohere2", "logit_scale": 0.25}, {"logit_scale": 0.25}),
    "qwen2_moe": (
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632},
        {"shared_ffn_dim": 5632},
    ),
    "qwen2_vl": (
        {
            "model_type": "qwen2_vl",
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        {"rope_sections": [16, 24, 24], "rope_scaling": NO_SCALING | {"type": "mrope"}},
    ),
    "glm4": (
        {"model_type": "glm4", "head_dim": 128, "partial_rotary_factor": 0.5},
        {"rope_dim": 64},
    ),
    "gpt_neox": ({"model_type": "gpt_neox", "head_dim": 64, "rotary_pct": 0.25}, {"rope_dim": 16}),
    "rope_parameters": (
        {
            "model_type": "stablelm",
            "head_dim": 80,
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
        },
        {"rope_dim": 20},
    ),
    "minimax_m2": (
        {"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64},
        {"rope_dim": 64},
    ),
    "phi3": (
        {
            "model_type": "phi3",
            "original_max_position_embeddings": 4096,
            "rope_scaling": {
                "type": "longrope",
                "attention_factor": 1.25,
                "long_factor": [1, 1.5],
                "short_factor": [1.0, 1.25],
            },
        },
        {
            "rope_scaling": NO_SCALING
            | {
                "type": "longrope",
                "original_max_position_embeddings": 4096,
                "attention_factor": 1.25,
                "long_factor": [1.0, 1.5],
                "short_factor": [1.0, 1.25],
            }
        },
    ),
}


@pytest.mark.parametrize("name", HF)
def test_fields_of_config_json(tmp_path, name):
    config, wanted = HF[name]
    with open_weights(write_hf(tmp_path / "m", config)) as w:
        table = w.get_config()
    assert {key: table[key] for key in EMPTY} == EMPTY | wanted


SIZES = {
    "gpt2": (
        {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 1024, "layer_norm_epsilon": 1e-5}
        | {"n_inner": None, "vocab_size": 100, "activation_function": "gelu_new"},
        {"dim": 48, "n_layers": 3, "n_heads": 4, "n_kv_heads": 4, "head_dim": 12, "ffn_dim": None}
        | {"max_seq_len": 1024, "norm_eps": 1e-5, "vocab_size": 100, "activation": "gelu_new"},
    ),
    "falcon": (
        {"hidden_size": 64, "num_attention_heads": 4, "multi_query": True, "ffn_hidden_size": 256},
        {"n_kv_heads": 1, "ffn_dim": 256},
    ),
    "falcon of 40B": (
        {"num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True}
        | {"new_decoder_architecture": True},
        {"n_kv_heads": 8},
    ),
    "chatglm": (
        {"hidden_size": 64, "num_layers": 2, "num_attention_heads": 4, "multi_query_group_num": 2}
        | {"kv_channels": 8, "ffn_hidden_size": 96, "padded_vocab_size": 70, "seq_length": 256}
        | {"layernorm_epsilon": 1e-5},
        {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "ffn_dim": 96, "vocab_size": 70}
        | {"max_seq_len": 256, "norm_eps": 1e-5},
    ),
    "dbrx": (
        {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}
        | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8}}
        | {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 16, "moe_top_k": 4}},
        {"dim": 64, "n_kv_heads": 2, "ffn_dim": 96, "n_experts": 16, "n_experts_used": 4},
    ),
    "openelm": (
        {"model_dim": 64, "num_transformer_layers": 2, "num_query_heads": [4, 6]}
        | {"num_kv_heads": [1, 2], "head_dim": 16, "max_context_length": 512},
        {"dim": 64, "n_layers": 2, "n_heads": 6, "n_heads_of_layers": [4, 6], "n_kv_heads": 2}
        | {"n_kv_heads_of_layers": [1, 2], "max_seq_len": 512},
    ),
    "llama4": (
        {"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16},
        {"ffn_dim": 16384, "moe_ffn_dim": 8192, "n_experts": 16},
    ),
    "hunyuan": (
        {"num_experts": 64, "moe_topk": [8, 8], "moe_intermediate_size": [3072, 3072]}
        | {"num_shared_expert": [1, 1]},
        {"n_experts": 64, "n_experts_used": 8, "moe_ffn_dim": 3072, "n_shared_experts": 1},
    ),
    "ernie4_5": (
        {"moe_num_experts": 64, "moe_k": 6, "moe_layer_start_index": 1},
        {"n_experts": 64, "n_experts_used": 6, "first_dense_layers": 1},
    ),
    "afmoe": (
        {"score_func": "sigmoid", "route_scale": 2.5},
        {"expert_gating": "sigmoid", "expert_weights_scale": 2.5},
    ),
    "step3p5": (
        {"rope_theta": [5e6, 1e4, 1e4], "moe_top_k": 8, "share_expert_dim": 1280}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        {"rope_theta": 5e6, "rope_theta_local": 1e4, "n_experts_used": 8, "shared_ffn_dim": 1280},
    ),
    "mimo_v2_flash": (
        {"rope_theta": 5e6, "swa_rope_theta": 1e4, "sliding_window_size": 128},
        {"rope_theta": 5e6, "rope_theta_local": 1e4, "sliding_window": 128},
    ),
    "modernbert": (
        {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "norm_eps": 1e-5},
        {"rope_theta": 160000.0, "rope_theta_local": 10000.0, "norm_eps": 1e-5},
    ),
    "jamba": (
        {"layers_block_type": ["mamba", "attention"]},
        {"layer_kinds": ["recurrent", "full"]},
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_spellings_of_older_and_other_models(tmp_path, name):
    config, wanted = SIZES[name]
    with open_weights(write_hf(tmp_path / "m", config)) as w:
        table = w.get_config()
    assert {key: table[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": [1e4]},  # for no layer
        {"rope_theta": [1e4], "layer_types": ["sliding_attention", "full_attention"]},
        {"rope_theta": [], "layer_types": ["full_attention"]},
    ],
)
def test_a_list_of_thetas_without_the_layer(tmp_path, config):
    with open_weights(write_hf(tmp_path / "m", config)) as w:
        assert w.config.rope_theta == 10000.0


YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.attn_factor": 1.25,
    "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
LATENT = {
    "attention.q_lora_rank": 1536,
    "attention.kv_lora_rank": 512,
    "rope.dimension_count": 64,
    "expert_shared_count": 1,
    "leading_dense_block_count": 3,
    "expert_weights_scale": 2.5,
    "expert_gating_func": 2,
}
LINEAR = {"rope_scaling": NO_SCALING | {"type": "linear", "factor": 4.0}}
GGUF = {
    "deepseek2": (
        "deepseek2",
        {
            **LATENT,
            **YARN,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
        },
        MLA
        | {
            "rope_scaling": NO_SCALING
            | {
                "type": "yarn",
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "attention_factor": 1.25,
                "ext_factor": 0.5,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            }
        },
    ),
    "deepseek2 of older files": (
        "deepseek2",
        {**LATENT, "attention.key_length": 192, "attention.value_length": 128},
        MLA,
    ),
    "gemma3": (
        "gemma3",
        {"rope.freq_base_swa": 10000.0, "attention.sliding_window_pattern": 6},
        {"rope_theta_local": 10000.0, "sliding_window_pattern": 6},
    ),
    "pattern of bools": (
        "gemma4",
        {"attention.sliding_window_pattern": [True, False]},
        {"layer_kinds": ["sliding", "full"]},
    ),
    "pattern of integers": (
        "mimo2",
        {"attention.sliding_window_pattern": [0, 1]},
        {"layer_kinds": ["full", "sliding"]},
    ),
    "qwen2vl": (
        "qwen2vl",
        {"rope.dimension_sections": [16, 24, 24, 0]},
        {"rope_sections": [16, 24, 24, 0]},
    ),
    "granite": (
        "granite",
        {
            "attention.scale": 0.0625,
            "embedding_scale": 12.0,
            "residual_scale": 0.25,
            "logit_scale": 8.0,
        },
        HF["granite"][1],
    ),
    "cohere2": ("cohere2", {"logit_scale": 0.25}, {"logit_scale": 0.25}),
    "qwen2moe": (
        "qwen2moe",
        {"expert_shared_feed_forward_length": 5632},
        {"shared_ffn_dim": 5632},
    ),
    "activation": (
        "modern-bert",
        {"hidden_activation": "gelu", "attention.value_length": 64},
        {"activation": "gelu", "v_head_dim": 64},
    ),
    "factor without type": ("llama", {"rope.scaling.factor": 4.0}, LINEAR),
    "old factor": ("llama", {"rope.scale_linear": 4.0}, LINEAR),
    "factor of 0": ("llama", {"rope.scaling.factor": 0.0}, {}),
    "type none": ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
}


@pytest.mark.parametrize("name", GGUF)
def test_fields_of_gguf(tmp_path, name):
    arch, keys, wanted = GGUF[name]
    metadata = {"general.architecture": arch}
    metadata |= {f"{arch}.{key}": value for key, value in keys.items()}
    with open_weights(write_gguf(tmp_path / "m.gguf", metadata)) as w:
        table = w.get_config()
        assert w.config.raw is None
    assert {key: table[key] for key in EMPTY} == EMPTY | wanted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_types", "full_attention"),
        ("layer_types", [1]),
        ("rope_scaling", {"type": "longrope", "long_factor": ["1"]}),
        ("q_lora_rank", 1.5),
        ("q_lora_rank", -1),
        ("moe_intermediate_size", [1, "2"]),
        ("rope_theta", ["1"]),
        ("n_embd", 1.5),
        ("hidden_act", 1),
        ("scoring_func", ["sigmoid"]),
        ("routed_scaling_factor", "2.5"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(tmp_path, key, value):
    path = write_hf(tmp_path / "m", {"model_type": "llama", key: value})
    with pytest.raises(WeightsError) as caught:
        open_weights(path)
    assert caught.value.code == "config"
    assert caught.value.subject in (key, "long_factor")


def test_the_raw_configuration(tmp_path):
    config = {
        "model_type": "llama",
        "list": [1, 2.5, -3, "é", None, True, [], {}],
        "nested": {"a": {"b": 2**53 + 1}},
        "eps": {"__float__": "Infinity"},
        "big": 2**64,
    }
    with open_weights(write_hf(tmp_path / "m", config)) as w:
        assert w.config.raw == config
        assert json.dumps(w.config.raw) == json.dumps(config | {"big": float(2**64)})
        assert w.config is w.config
        assert "raw" not in w.get_config()
        assert "raw" not in repr(w.config)
        w.close()
        with pytest.raises(ValueError, match="closed"):
            w.config  # noqa: B018
    (tmp_path / "m" / "config.json").unlink()
    with open_weights(tmp_path / "m") as w:
        assert w.config.raw is None


def test_an_impossible_part_of_a_head(tmp_path):
    for part in (-0.5, 1.5, math.inf, math.nan):
        config = {"model_type": "glm4", "head_dim": 128, "partial_rotary_factor": part}
        with open_weights(write_hf(tmp_path / "m", config)) as w:
            assert w.config.rope_dim is None


def test_factors_of_long_rope_have_canonical_names(tmp_path):
    factors = {f"rope_factors_{kind}.weight": np.ones(2, np.float32) for kind in ("long", "short")}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "phi3"}, factors)
    with open_weights(path) as w:
        assert list(w) == list(factors)

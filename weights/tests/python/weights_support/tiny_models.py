"""Tiny models of transformers, whose GGUF files support/llama_cpp.py makes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

#: For a setting of COMMON that a configuration refuses.
OMIT = object()
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
#: Where a head is hidden_size / heads.
NO_HEAD_DIM = {"head_dim": OMIT}
GPT_2 = {
    **NO_HEAD_DIM,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "n_inner": 48,
}
MAMBA = {
    **NO_HEAD_DIM,
    "state_size": 8,
    "time_step_rank": 6,
    "intermediate_size": 64,
    "conv_kernel": 3,
}
MAMBA_2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_conv": 3,
    "mamba_expand": 2,
}
GRANITE_HYBRID = {
    **MAMBA_2,
    **NO_HEAD_DIM,
    "layer_types": ["mamba", "attention"],
    "shared_intermediate_size": 28,
    "position_embedding_type": "nope",
}
NEMOTRON_H = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 12,
    "conv_kernel": 3,
    "num_hidden_layers": 3,
}
INDEXER = {**MLA, "q_lora_rank": 18, "index_n_heads": 3, "index_head_dim": 14, "index_topk": 4}
T5 = {
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
    "head_dim": OMIT,
}
GATED = {"feed_forward_proj": "gated-gelu"}
MPT = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "head_dim": OMIT}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 32,
}
QWEN_3_VL = {**VISION, "deepstack_visual_indexes": [0, 2], "num_position_embeddings": 16}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
}
LLAMA = {"model_type": "llama"}
SHORT_SECTIONS = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
SECTIONS = {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 10000.0}


class Tiny(NamedTuple):
    """A class of transformers, without its last word, and the arguments of its configuration."""

    name: str
    changes: dict[str, Any]
    config: str = ""
    """The class of the configuration, where it has another name."""
    architecture: str = ""
    """The architecture of GGUF, where it is not the key."""
    head: str = "ForCausalLM"
    """The last word of the class."""
    raw: Mapping[str, Any] = MappingProxyType({})
    """What checkpoints have in config.json, and the converter reads, unlike transformers."""
    lost: str = "$"
    """A pattern of names that the converter drops, or has in another file."""
    tokenizer: str = "gpt2"
    is_tower: bool = False
    """Whether the file has the images' part of the model."""
    hub: tuple[str, str] = ("", "")
    """A pattern of names, and what published checkpoints have in its place."""
    transposed: str = ""
    """A pattern of names whose tensors are transposed in published checkpoints."""
    published: tuple[str, str] = ("", "")
    """A pattern of names that transformers also loads under others: those of published checkpoints,
    which are here in its place."""


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
    "apertus": Tiny("Apertus", {}),
    "bamba": Tiny(
        "Bamba",
        {**MAMBA_2, **NO_HEAD_DIM, "attn_layer_indices": [1]},
        architecture="granitehybrid:bamba",
    ),
    "bert": Tiny("Bert", {**NO_HEAD_DIM}, head="Model", lost="pooler", tokenizer="bert"),
    "bloom": Tiny(
        "Bloom", {**TIED, "n_head": 4, "n_layer": 2, **NO_HEAD_DIM, "intermediate_size": OMIT}
    ),
    "chatglm": Tiny("Glm", {}),
    "dbrx": Tiny(
        "Dbrx",
        {
            **MPT,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {
                "ffn_hidden_size": 24,
                "moe_num_experts": 5,
                "moe_top_k": 2,
                "hidden_size": 32,
            },
        },
    ),
    "deepseek32": Tiny("DeepseekV32", {**INDEXER}),
    "distilbert": Tiny(
        "DistilBert",
        {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, **NO_HEAD_DIM},
        architecture="bert:distilbert",
        head="Model",
        tokenizer="bert",
    ),
    "eurobert": Tiny("EuroBert", {}, head="Model", raw={"classifier_pooling": "mean"}),
    "falcon": Tiny(
        "Falcon",
        {**NO_HEAD_DIM, **TIED, "multi_query": True},
        raw={"num_kv_heads": 1},
    ),
    "falcon-40b": Tiny(
        "Falcon",
        {**NO_HEAD_DIM, **TIED, "new_decoder_architecture": True, "num_kv_heads": 2},
        architecture="falcon:40b",
    ),
    "falcon_mamba": Tiny("FalconMamba", {**MAMBA, **TIED}, architecture="mamba"),
    "gemma-embedding": Tiny("Gemma3Text", {}, head="Model"),
    "gemma3n": Tiny(
        "Gemma3n",
        {
            **TIED,
            "vocab_size_per_layer_input": 29,
            "hidden_size_per_layer_input": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "laurel_rank": 5,
            "activation_sparsity_pattern": [0.5, 0.0],
        },
        "Gemma3nTextConfig",
    ),
    "glm-dsa": Tiny("GlmMoeDsa", {**INDEXER}),
    "gpt2": Tiny("GPT2", {**GPT_2, **TIED, "n_inner": 128}, head="LMHeadModel", raw={"n_ctx": 64}),
    "gptneox": Tiny("GPTNeoX", {**NO_HEAD_DIM}, raw={"rotary_pct": 0.25}),
    "granite_swa": Tiny("GraniteSWA", {}),
    "granite_swa-moe": Tiny(
        "GraniteMoeSWA",
        {**LOCAL_EXPERTS, "shared_intermediate_size": 28},
        architecture="granite_swa",
    ),
    "granitehybrid": Tiny(
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, **LOCAL_EXPERTS},
        raw={"layer_types": ["mamba", "attention"]},
    ),
    "granitehybrid-dense": Tiny(
        "GraniteMoeHybrid",
        {**GRANITE_HYBRID, "num_local_experts": 0, "num_experts_per_tok": 0},
        architecture="granitehybrid",
        raw={"layer_types": ["mamba", "attention"]},
    ),
    "granitemoe-shared": Tiny(
        "GraniteMoeShared",
        {**LOCAL_EXPERTS, "shared_intermediate_size": 28},
        architecture="granitemoe",
    ),
    "hunyuan_vl": Tiny(
        "HunYuanVL",
        {"text_config": {"rope_parameters": SECTIONS}, "vision_config": TOWER},
        head="ForConditionalGeneration",
        lost="vit",
    ),
    "jamba": Tiny(
        "Jamba",
        {
            **NO_HEAD_DIM,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
            "use_mamba_kernels": False,
        },
    ),
    "kimi-linear": Tiny(
        "KimiLinear",
        {
            **MLA,
            "n_routed_experts": OMIT,
            "num_experts": 6,
            "n_group": 1,
            "topk_group": 1,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_head_dim": 12,
            "linear_num_heads": 4,
            "linear_conv_kernel_dim": 3,
        },
        raw={
            "num_experts": 6,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "linear_attn_config": {
                "kda_layers": [1],
                "full_attn_layers": [2],
                "head_dim": 12,
                "num_heads": 4,
                "short_conv_kernel_size": 3,
            },
        },
        published=(r"block_sparse_moe\.(?=(gate|up|down)_proj)", "mlp."),
    ),
    "mamba": Tiny("Mamba", {**MAMBA, **TIED}),
    "mamba2": Tiny(
        "Mamba2",
        {
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 12,
            "n_groups": 2,
            "conv_kernel": 3,
            "intermediate_size": OMIT,
        },
        raw={"intermediate_size": 64},
    ),
    "mellum": Tiny("Mellum", {**EXPERTS}),
    "mimo2": Tiny(
        "MiMoV2Flash",
        {**ROUTED, "v_head_dim": 10},
        raw={
            "swa_head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
            "swa_rope_theta": 10000.0,
            "swa_num_attention_heads": 4,
            "swa_v_head_dim": 10,
            "topk_method": "noaux_tc",
            "hybrid_layer_pattern": [0, 1],
            "swa_num_key_value_heads": 2,
        },
    ),
    "minicpm3": Tiny("MiniCPM3", {**MLA, "q_lora_rank": 18}),
    "minimax-m3": Tiny(
        "MiniMaxM3Sparse",
        {
            "text_config": {
                **LOCAL_EXPERTS,
                "rotary_dim": 8,
                "layer_types": ["full_attention", "minimax_m3_sparse"],
                "mlp_layer_types": ["dense", "sparse"],
                "dense_intermediate_size": 40,
                "shared_intermediate_size": 28,
                "index_n_heads": 2,
                "index_head_dim": 14,
            },
            "vision_config": TOWER,
        },
        "MiniMaxM3VLConfig",
        head="ForConditionalGeneration",
        lost="vision|multi_modal|patch_merge",
        raw={
            "n_shared_experts": 1,
            "moe_layer_freq": [0, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 14,
                "sparse_topk_blocks": 4,
                "sparse_block_size": 4,
                "sparse_local_block": 1,
            },
        },
    ),
    "mistral": Tiny("Mistral", {}, architecture="llama"),
    "mistral4": Tiny(
        "Mistral4",
        {**MLA, "q_lora_rank": 18, "head_dim": OMIT},
        raw={"architectures": ["Mistral3ForConditionalGeneration"]},
    ),
    "modern-bert": Tiny("ModernBert", {**NO_HEAD_DIM}, head="Model"),
    "mpt": Tiny("Mpt", {**MPT}, raw={"architectures": ["MPTForCausalLM"]}),
    "muse-glimmer": Tiny(
        "MuseGlimmer",
        {
            "text_config": {"layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": {
                **TOWER,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
                "max_position_embeddings": 16,
            },
        },
        head="ForConditionalGeneration",
        lost=r"model\.(vision|multi)",
    ),
    "nemotron_h": Tiny(
        "NemotronH",
        {**NEMOTRON_H, "layers_block_type": ["mamba", "attention", "mlp"]},
        raw={"num_experts_per_tok": OMIT, "hybrid_override_pattern": "M*-"},
    ),
    "nemotron_h_moe": Tiny(
        "NemotronH",
        {
            **NEMOTRON_H,
            **ROUTED,
            "layers_block_type": ["mamba", "attention", "moe"],
            "moe_shared_expert_intermediate_size": 28,
            "n_shared_experts": 1,
        },
    ),
    "nomic-bert": Tiny(
        "NomicBert",
        {**NO_HEAD_DIM},
        head="Model",
        raw={
            "n_positions": 2048,
            "activation_function": "swiglu",
            "causal": False,
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "prenorm": False,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
        },
        lost="pooler",
        tokenizer="bert",
    ),
    "olmo3": Tiny("Olmo3", {}, architecture="olmo2"),
    "paddleocr": Tiny(
        "PaddleOCRVL",
        {"text_config": {"rope_parameters": SECTIONS}, "vision_config": {"num_hidden_layers": 1}},
        head="ForConditionalGeneration",
        lost="visual|mlp_AR",
    ),
    "phimoe": Tiny(
        "Phimoe",
        {**LOCAL_EXPERTS, **NO_HEAD_DIM},
        raw={"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": 64},
    ),
    "qwen2vl": Tiny(
        "Qwen2VL",
        {
            "text_config": {"rope_parameters": SHORT_SECTIONS, **NO_HEAD_DIM},
            "vision_config": {
                "depth": 3,
                "embed_dim": 32,
                "hidden_size": 32,
                "patch_size": 4,
                "num_heads": 2,
            },
        },
        head="ForConditionalGeneration",
        lost="visual",
    ),
    "qwen2vl-2.5": Tiny(
        "Qwen2_5_VL",
        {
            "text_config": {"rope_parameters": SHORT_SECTIONS, **NO_HEAD_DIM},
            "vision_config": {**VISION, "fullatt_block_indexes": [1]},
        },
        architecture="qwen2vl",
        head="ForConditionalGeneration",
        lost="visual",
    ),
    "qwen3vl": Tiny(
        "Qwen3VL",
        {"text_config": {"rope_parameters": SECTIONS}, "vision_config": QWEN_3_VL},
        head="ForConditionalGeneration",
        lost=r"model\.visual",
    ),
    "qwen3vlmoe": Tiny(
        "Qwen3VLMoe",
        {"text_config": {**EXPERTS, "rope_parameters": SECTIONS}, "vision_config": QWEN_3_VL},
        head="ForConditionalGeneration",
        lost=r"model\.visual",
        transposed=r"experts\.\w+$",
    ),
    "solar_open": Tiny("SolarOpen", {**ROUTED}, architecture="glm4moe"),
    "stablelm": Tiny(
        "StableLm", {**NO_HEAD_DIM, "qk_layernorm": True}, raw={"partial_rotary_factor": 0.25}
    ),
    "starcoder": Tiny("GPTBigCode", {**GPT_2, **TIED}),
    "step35": Tiny(
        "Step3p7",
        {
            "text_config": {
                "moe_intermediate_size": 24,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "share_expert_dim": 28,
                "mlp_layer_types": ["dense", "sparse"],
                "layer_types": ["full_attention", "sliding_attention"],
                "sliding_window": 8,
                "num_sliding_attention_heads": 6,
            },
            "vision_config": {**TOWER, "image_size": 16},
        },
        head="ForConditionalGeneration",
        lost="vision|vit",
        raw={
            "architectures": ["Step3p5ForCausalLM"],
            "num_attention_groups": 2,
            "moe_num_experts": 6,
            "moe_top_k": 2,
            "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
            "partial_rotary_factors": [0.5, 1.0],
            "moe_layers_enum": "1",
        },
    ),
    "t5": Tiny("T5", {**T5, **GATED}, head="ForConditionalGeneration", raw=T5),
    "t5-relu": Tiny("T5", {**T5}, architecture="t5:relu", head="ForConditionalGeneration", raw=T5),
    "t5encoder": Tiny("T5", {**T5, **GATED}, head="EncoderModel"),
    "t5encoder-relu": Tiny("T5", {**T5}, architecture="t5encoder:relu", head="EncoderModel"),
    "umt5": Tiny("UMT5", {**T5}, architecture="t5", head="ForConditionalGeneration", raw=T5),
}
MODELS |= {
    **{
        f"clip-{name}": MODELS[name]._replace(
            architecture=f"clip:{kind}",
            lost=rf"(?!{MODELS[name].lost})",
            is_tower=True,
            transposed="",
        )
        for name, kind in {
            "qwen2vl": "qwen2vl_merger",
            "qwen2vl-2.5": "qwen2.5vl_merger",
            "qwen3vl": "qwen3vl_merger",
        }.items()
    },
    "clip-gemma3": Tiny(
        "Gemma3",
        {
            "text_config": {},
            "vision_config": {**SIGLIP, "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
        architecture="clip:gemma3",
        head="ForConditionalGeneration",
        lost="(?!vision_tower|multi_modal)",
        is_tower=True,
        hub=(r"^vision_tower\.", "vision_tower.vision_model."),
    ),
    "clip-idefics3": Tiny(
        "Idefics3",
        {"text_config": LLAMA, "vision_config": SIGLIP, "scale_factor": 2},
        architecture="clip:idefics3",
        head="ForConditionalGeneration",
        lost=r"(?!model\.(vision|connector))",
        is_tower=True,
    ),
    "clip-pixtral": Tiny(
        "Mistral3",
        {
            "text_config": {"model_type": "mistral"},
            "vision_config": {"model_type": "pixtral", **SIGLIP, "head_dim": 16},
        },
        architecture="clip:pixtral",
        head="ForConditionalGeneration",
        lost="(?!vision_tower|multi_modal)",
        is_tower=True,
    ),
    "clip-smolvlm": Tiny(
        "SmolVLM",
        {"text_config": LLAMA, "vision_config": SIGLIP, "scale_factor": 2},
        architecture="clip:idefics3",
        head="ForConditionalGeneration",
        lost=r"(?!model\.(vision|connector))",
        is_tower=True,
    ),
}

"""The canonical names of the weight layer, and facts about architectures. Written by hand.

weights/scripts/gen_weight_tables.py joins these rules with the names of gguf-py and llama.cpp, and
writes weights/src/names/tables.inc. In names, `#` stands for a number: of a layer, an expert, or
another part.
"""

# --- Names of GGUF -------------------------------------------------------------------------------

#: Modules below "blk.#." of GGUF, and their names below "layers.#.".
LAYER = {
    "attn_norm": "attention_norm",
    "attn_norm_2": "attention_norm_2",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_qkv": "attention.qkv",
    "attn_output": "attention.output",
    "attn_gate": "attention.gate",
    "attn_sinks": "attention.sinks",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "attn_output_norm": "attention.output_norm",
    "attn_sub_norm": "attention.sub_norm",
    "attn_q_a": "attention.q_a",
    "attn_q_b": "attention.q_b",
    "attn_kv_a_mqa": "attention.kv_a",
    "attn_kv_b": "attention.kv_b",
    "attn_k_b": "attention.k_b",
    "attn_v_b": "attention.v_b",
    "attn_q_a_norm": "attention.q_a_norm",
    "attn_kv_a_norm": "attention.kv_a_norm",
    "attn_kv": "attention.kv",
    "attn_output_a": "attention.output_a",
    "attn_output_b": "attention.output_b",
    "attn_res_score": "attention.residual_score",
    "attn_rot_embd": None,  # computed from the configuration, as inv_freq: left out
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "pre_ffw_norm_2": "ffn_norm_2",
    "post_ffw_norm": "post_ffn_norm",
    "post_ffw_norm_1": "post_ffn_norm_1",
    "post_ffw_norm_2": "post_ffn_norm_2",
    "layer_output_norm": "layer_output_norm",
    "layer_output_scale": "layer_output_scale",
    "ffn_gate": "ffn.gate",
    "ffn_up": "ffn.up",
    "ffn_down": "ffn.down",
    "ffn": "ffn.act",
    "ffn.act": "ffn.act",  # as llama.cpp spells it
    "ffn_sub_norm": "ffn.sub_norm",
    "ffn_gate_inp": "ffn.router",
    "ffn_gate_tid2eid": "ffn.router_by_token",
    "ffn_res_score": "ffn.residual_score",
    "exp_probs_b": "ffn.router_correction",
    "exp_probs_b_vl": "ffn.router_correction_vision",
    "ffn_gate_exps": "ffn.experts.gate",
    "ffn_up_exps": "ffn.experts.up",
    "ffn_down_exps": "ffn.experts.down",
    "ffn_gate_up_exps": "ffn.experts.gate_up",
    "ffn_norm_exps": "ffn.experts.norm",
    "ffn_gate.#": "ffn.experts.#.gate",  # older files have a tensor for each expert
    "ffn_up.#": "ffn.experts.#.up",
    "ffn_down.#": "ffn.experts.#.down",
    "ffn_gate_shexp": "ffn.shared_expert.gate",
    "ffn_up_shexp": "ffn.shared_expert.up",
    "ffn_down_shexp": "ffn.shared_expert.down",
    "ffn_gate_inp_shexp": "ffn.shared_expert_gate",
    "ffn_gate_chexps": "ffn.chunk_experts.gate",
    "ffn_up_chexps": "ffn.chunk_experts.up",
    "ffn_down_chexps": "ffn.chunk_experts.down",
    "inp_gate": "per_layer.gate",
    "proj": "per_layer.proj",
    "post_norm": "per_layer.post_norm",
}
#: Beginnings of families of modules below "blk.#.", and what replaces them.
LAYER_FAMILIES = {
    "ffn_latent_": "ffn.latent.",
    "ssm_": "ssm.",
    "shortconv.": "shortconv.",
    "nextn.": "nextn.",
    "indexer.": "attention.indexer.",
    "indexer_compressor_": "attention.indexer.compressor.",
    "attn_compressor_": "attention.compressor.",
    "attn_conv_": "attention.conv_",
    "ffn_conv_": "ffn.conv_",
    "ffn_routed_": "ffn.routed.",
    "hc_": "hyper_connection.",
    "ple_": "per_layer.",
    "altup_": "altup.",
    "laurel_": "laurel.",
    "vis_": "vision_expert.",
    "time_mix_": "rwkv.time_mix_",
    "channel_mix_": "rwkv.channel_mix_",
}
#: Modules outside the layers.
GLOBAL = {
    "token_embd": "token_embedding",
    "token_embd_norm": "token_embedding_norm",
    "token_types": "token_type_embedding",
    "position_embd": "position_embedding",
    "output_norm": "output_norm",
    "output": "output",
    "rope_freqs": "rope_freqs",
    "rope_factors_long": "rope_factors_long",
    "rope_factors_short": "rope_factors_short",
    "output_res_score": "output_residual_score",
    "fc": "draft.fc",  # of models that draft tokens for others
    "d2t": "draft.token_map",
    "markov_w1": "draft.markov_w1",
    "markov_w2": "draft.markov_w2",
    "conf_proj": "draft.confidence",
    "hrm.z_l_init": "recurrent_state",
    "dense_2": "dense_2",
    "dense_3": "dense_3",
    "per_layer_token_embd": "per_layer_token_embedding",
    "per_layer_model_proj": "per_layer_model_proj",
    "per_layer_proj_norm": "per_layer_proj_norm",
    "altup_proj": "altup.proj",
    "altup_unembd_proj": "altup.unembd_proj",
    "cls": "classifier",
    "cls.output": "classifier.output",
    "cls.norm": "classifier.norm",
    "conv1d": "codec.conv1d",
}
#: Beginnings of families outside the layers. The first that fits is used.
GLOBAL_FAMILIES = {
    "output_hc_": "output_hyper_connection.",
    "masked_embd_": "masked_embedding.",
    "nextn.": "nextn.",
    "selector_": "draft.selector_",
    "mm.a.": "projector.audio.",
    "mm.": "projector.",
    "resampler.": "projector.resampler.",
    "v.": "vision.",
    "a.": "audio.",
    "enc.": "encoder.",
    "dec.": "decoder.",
    "convnext.": "codec.convnext.",
    "posnet.": "codec.posnet.",
}
#: Modules of encoders, decoders and towers that layers of language models name otherwise.
TOWER = {
    "attn_o": "attention.output",
    "attn_out": "attention.output",
    "attn_rel_b": "attention.relative_bias",
    "attn_out_norm": "attention.output_norm",
    "cross_attn_q": "cross_attention.q",
    "cross_attn_k": "cross_attention.k",
    "cross_attn_v": "cross_attention.v",
    "cross_attn_o": "cross_attention.output",
    "cross_attn_norm": "cross_attention_norm",
    "cross_attn_rel_b": "cross_attention.relative_bias",
}


def _in_layer(leaf: str) -> str | None:
    if leaf in LAYER:
        return LAYER[leaf]
    for start, ours in LAYER_FAMILIES.items():
        if leaf.startswith(start):
            return ours + leaf.removeprefix(start)
    raise KeyError(f"weights/scripts/weight_rules.py has no rule for the GGUF name blk.#.{leaf}")


def canonical_of_gguf(name: str) -> str | None:
    """Returns the canonical module of a module of GGUF; None if it is left out."""
    layers = "blk.#."
    if name.startswith(layers):
        module = _in_layer(name.removeprefix(layers))
        return None if module is None else f"layers.#.{module}"
    if name in GLOBAL:
        return GLOBAL[name]
    for start, ours in GLOBAL_FAMILIES.items():
        if not name.startswith(start):
            continue
        rest = name.removeprefix(start)
        if not rest.startswith(layers):
            return ours + rest
        leaf = rest.removeprefix(layers)
        return f"{ours}layers.#.{TOWER.get(leaf) or LAYER.get(leaf) or leaf}"
    raise KeyError(f"weights/scripts/weight_rules.py has no rule for the GGUF name {name}")


# --- Names of Hugging Face and MLX ---------------------------------------------------------------
# Without "model.", or the root of the language model in a model of images and text. They have
# precedence over gguf-py's.

EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
MIXTRAL = {"w1": "gate", "w3": "up", "w2": "down"}

HF: dict[str, str | None] = {
    # What these mean depends on the layer: see weights/src/names/names.cpp.
    "layers.#.post_attention_layernorm": "layers.#.ffn_norm",
    # Of rwkv6qwen2 they are GGUF's time_mix_*; all other models have attention.
    "layers.#.self_attn.q_proj": "layers.#.attention.q",
    "layers.#.self_attn.k_proj": "layers.#.attention.k",
    "layers.#.self_attn.v_proj": "layers.#.attention.v",
    "layers.#.self_attn.o_proj": "layers.#.attention.output",
    # Of RWKV 7 they are GGUF's time_mix_*: see weights/src/names/names.cpp.
    "layers.#.attention.k_proj": "layers.#.attention.k",
    "layers.#.attention.v_proj": "layers.#.attention.v",
    "layers.#.attention.o_proj": "layers.#.attention.output",
    # gguf-py has several meanings for these.
    "layers.#.ln2": "layers.#.ffn_norm",  # Yi; RWKV 7: attention_norm_2
    "layers.#.feed_forward.up_proj": "layers.#.ffn.up",
    "layers.#.feed_forward.down_proj": "layers.#.ffn.down",
    "transformer.norm": "output_norm",  # OpenELM
    "backbone.posnet.#.norm": "codec.posnet.#.norm",
    "vision_tower.patch_embed.patchifier.norm": "vision.norm_embd",
    "vision_encoder.patch_embed.norm": "vision.norm_embd",
    "vision_model.model.layers.#.post_attention_layernorm": "vision.layers.#.ln2",
    "vision.linear_proj.norm1": "projector.post_fc_norm",
    # Gate and up in one matrix, gate first. GGUF names it ffn_up.
    "layers.#.mlp.gate_up_proj": "layers.#.ffn.gate_up",
    "layers.layers.#.mlp.gate_up_proj": "layers.#.ffn.gate_up",
    "layers.#.mlp.Wi": "layers.#.ffn.gate_up",
    "transformer_encoder.#.ffn.w12": "layers.#.ffn.gate_up",
    "encoder.layers.#.mlp.dense_h_to_4h": "layers.#.ffn.gate_up",
    "layers.#.block_sparse_moe.input_linear": "layers.#.ffn.experts.gate_up",
    "layers.#.block_sparse_moe.experts.gate_up_proj": "layers.#.ffn.experts.gate_up",
    "layers.#.block_sparse_moe.experts.down_proj": "layers.#.ffn.experts.down",
    "layers.#.feed_forward.experts.gate_up_proj": "layers.#.ffn.experts.gate_up",
    "layers.#.shared_mlp.input_linear": "layers.#.ffn.shared_expert.gate_up",
    # Computed from the configuration.
    "layers.#.attention.inner_attention.rope.freqs": None,
    "rotary_pos_emb.inv_freq": None,
    "encoder.layers.#.self_attention.rotary_emb.inv_freq": None,
    # Parameters whose own names say what they are.
    "layers.#.mlp.expert_bias": "layers.#.ffn.router_correction.bias",
    "layers.#.mlp.gate.expert_bias": "layers.#.ffn.router_correction.bias",
    "layers.#.feed_forward.expert_bias": "layers.#.ffn.router_correction.bias",
    "layers.#.moe.router_bias": "layers.#.ffn.router_correction.bias",
    "layers.#.router.scale": "layers.#.ffn.router.scale",
    "layers.#.router.per_expert_scale": "layers.#.ffn.experts.down.scale",
    # dt_bias
    "layers.#.linear_attn.dt": "layers.#.ssm.dt",
    "layers.#.mamba.dt": "layers.#.ssm.dt",
    "layers.#.self_attn.dt": "layers.#.ssm.dt",
    "layers.#.dt": "layers.#.ssm.dt",
    "layers.layers.#.mixer.dt": "layers.#.ssm.dt",
    # One norm for each head, and one matrix for each input of altup; GGUF stacks them.
    "layers.#.self_attn.q_layernorm.norms.#": "layers.#.attention.q_norm.#",
    "layers.#.self_attn.k_layernorm.norms.#": "layers.#.attention.k_norm.#",
    "altup_projections.#": "altup.proj.#",
    "altup_unembed_projections.#": "altup.unembd_proj.#",
    # transformers 5
    "layers.#.self_attn.attn_sub_norm": "layers.#.attention.sub_norm",
    "layers.#.mlp.ffn_sub_norm": "layers.#.ffn.sub_norm",
    "layers.#.block_sparse_moe.router": "layers.#.ffn.router",
    "layers.#.mlp.gate.moe_statics.e_score_correction": "layers.#.ffn.router_correction",
    "visual.merger.linear_fc1": "projector.0",  # Qwen 3 VL; Qwen 2 VL: merger.mlp.0
    "visual.merger.linear_fc2": "projector.2",
    "visual.merger.norm": "vision.post_ln",
    "multi_modal_projector.mm_input_projection_weight": "projector.input_projection.weight",
    # MLX
    "layers.#.self_attn.embed_q": "layers.#.attention.k_b",
    "layers.#.self_attn.unembed_out": "layers.#.attention.v_b",
    "backbone.layers.#.mixer.switch_mlp.fc1": "layers.#.ffn.experts.up",
    "backbone.layers.#.mixer.switch_mlp.fc2": "layers.#.ffn.experts.down",
}
for _part, _ours in EXPERTS.items():
    for _block in (
        "mlp.switch_mlp",
        "mlp.experts.switch_mlp",
        "block_sparse_moe.switch_mlp",
        "feed_forward.switch_mlp",
        "moe.switch_mlp",
        "experts.switch_glu",
    ):
        HF[f"layers.#.{_block}.{_part}"] = f"layers.#.ffn.experts.{_ours}"
    HF[f"layers.#.shared_mlp.{_part}"] = f"layers.#.ffn.shared_expert.{_ours}"
    HF[f"backbone.layers.#.mixer.experts.{_part}"] = f"layers.#.ffn.experts.{_ours}"
    HF[f"backbone.layers.#.mixer.experts.#.{_part}"] = f"layers.#.ffn.experts.#.{_ours}"
for _parts in (EXPERTS, MIXTRAL):
    for _part, _ours in _parts.items():
        for _block in ("mlp", "block_sparse_moe", "feed_forward"):
            HF[f"layers.#.{_block}.experts.#.{_part}"] = f"layers.#.ffn.experts.#.{_ours}"

#: Names of gguf-py that are not used.
HF_SKIPPED = {
    "encoder": "a word that other models use otherwise",  # NeoBERT's embedding
    "shared": "a word that other models use otherwise",  # T5's embedding
    "dense": "a word that other models use otherwise",  # NeoBERT's classifier
    "head": "a word that other models use otherwise",  # RWKV's output
    "layer_norm": "a word that other models use otherwise",  # NeoBERT's output norm
    # Names that gguf-py's scripts make; they collide with those of Llama 4.
    "vision_model.model.layers.#.pre_feedforward_layernorm": "made by a script",
}
#: Beginnings of names that checkpoints store with other beginnings, too.
HF_BEGINNINGS = {
    "h.#.": "transformer.h.#.",
    "encoder.": "transformer.encoder.",  # ChatGLM
    "embedding.": "transformer.embedding.",
    "output_layer": "transformer.output_layer",
    "word_embeddings": "transformer.word_embeddings",  # Bloom
    "backbone.layers.#.": "layers.#.",  # Mamba and Nemotron-H of transformers 5
    "vision_tower.vision_model.": "vision_tower.",
}

# --- Architectures -------------------------------------------------------------------------------
# Lists are texts of words.

#: What llama.cpp decides by a model's metadata, or outside of llama_model_rope_type; None: the
#: style is not known. A condition in that function which is not listed here is an error.
ROPE = {
    "bailingmoe3": "interleaved_or_mrope",
    "dflash": None,
    "glm4": "interleaved_or_mrope",
    "glm4moe": "half_or_mrope",
    "granite": "interleaved_or_none",
    "granitehybrid": "interleaved_or_none",
    "graniteswitch": "interleaved_or_none",
    "hunyuan_vl": "half_or_mrope",
}
#: What the conversion to GGUF changes: llama.cpp's conversion scripts, where `permute` reorders
#: rows and `+ 1` raises norm weights. Architectures that are not here are `unrecorded`.
CONVERSION = {
    "same": "afmoe apertus bert chatglm cohere2 cohere2moe command-r dots1 dream ernie4_5"
    " ernie4_5-moe eurobert exaone-moe exaone4 gemma3n gemma4 glm4 glm4moe hunyuan-dense"
    " hunyuan-moe hunyuan_vl hy_v3 jais2 laguna lfm2 lfm2moe mellum mimo2 minicpm3 minimax-m2"
    " modern-bert mpt nomic-bert olmo2 olmoe paddleocr phi2 phi3 phimoe qwen2 qwen2moe qwen2vl"
    " qwen3 qwen3moe qwen3vl seed_oss stablelm starcoder starcoder2 t5 t5encoder",
    "reordered_rows": "arcee deci deepseek granite granite_swa granitemoe llada llama llama-embed"
    " minicpm mistral3 olmo smollm3",
    "raised_norms": "gemma gemma-embedding gemma2 gemma3 minimax-m3 nemotron step35",
    "latent": "deepseek2 deepseek2-ocr deepseek32 glm-dsa kimi-linear mistral4",
    "delta_net": "qwen35 qwen35moe qwen3next",
    "state_space": "granitehybrid jamba mamba mamba2 nemotron_h nemotron_h_moe plamo2",
    "multiplied": "falcon-h1",
    "fused_qkv": "bloom falcon gptneox",
    "grouped_rows": "baichuan xverse",
    "gpt_oss": "gpt-oss",
    "transposed": "dbrx gpt2 llama4 qwen3vlmoe",
}
#: Architectures whose layers without ffn_gate have gate and up in one matrix, named ffn_up.
FUSED_UP = "chatglm glm4 modern-bert neo-bert phi3 plamo2 plamo3"

#: Architectures of which only the names are mapped: no check of the configuration.
NAMES_ONLY = (
    "arwkv7 bailingmoe3 clip cohere2moe deepseek32 deepseek4 dflash dots3note eagle3"
    " gemma4-assistant glm5-next granite_swa graniteswitch hrm_text hy_v3 hy_v4 kimi-k3 laguna"
    " maple mellum minimax-01 minimax-m3 muse-glimmer nanbeige pockettts qwen qwen3tts qwen4exp"
    " rwkv6 rwkv6qwen2 rwkv7 spark2_5 t5 t5encoder talkie wavtokenizer-dec"
)
#: Architectures whose model types in config.json have NORMS_TELL.
EVIDENCE = (
    "arcee cohere2 command-r deci deepseek deepseek2 deepseek2-ocr dots1 ernie4_5 ernie4_5-moe"
    " exaone4 gemma gemma-embedding gemma2 gemma3 glm-dsa glm4 glm4moe gpt-oss granite granitemoe"
    " hunyuan-dense hunyuan-moe llama llama-embed minicpm3 minimax-m2 mistral3 nemotron olmo olmo2"
    " olmoe phi3 phimoe plm qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next"
    " qwen3vl qwen3vlmoe seed_oss smollm3 stablelm starcoder2"
)

# Model types of config.json. Rotary embedding: the rotary functions in the modelling code of
# transformers 5.23, and the `traditional` flag of mlx-lm 0.32.2; interleaved_or_half for types
# whose code reads rope_interleave. Norms: the forward functions of the norms.

#: Rule for rotary embedding.
HF_ROPE = {
    "half": "afmoe apertus arcee bitnet dbrx deepseek dots1 eurobert exaone4 falcon falcon_h1 gemma"
    " gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text glm4_moe gpt_neox gpt_oss"
    " granite granitemoe hunyuan_v1_dense hunyuan_v1_moe lfm2 lfm2_moe llama mimo_v2_flash"
    " minicpm3 minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text ministral ministral3 mistral"
    " mistral3 mixtral modernbert nemotron nemotron-nas nomic_bert olmo olmo2 olmo3 olmoe phi phi3"
    " phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next recurrent_gemma seed_oss smollm3"
    " stablelm starcoder2 step3p5 step3p7 t5gemma t5gemma2 vaultgemma",
    "none": "bloom falcon_mamba gpt2 jamba kimi_linear mamba mamba2 mpt nemotron_h t5",
    "interleaved": "cohere cohere2 cohere2_moe deepseek_v2 deepseek_v32 deepseek_v4 ernie4_5"
    " ernie4_5_moe glm glm4 glm4v glm4v_text glm_moe_dsa gptj helium llama4 llama4_text"
    " longcat_flash",
    "interleaved_or_half": "deepseek_v3 glm4_moe_lite kimi_k2 mistral4 youtu",
    "half_or_none": "granitemoehybrid",
    "unknown": "plm",
    "mrope": "qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text",
    "imrope": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_vl qwen3_vl_moe"
    " qwen3_vl_moe_text qwen3_vl_text",
}
#: What a model adds to a stored norm weight. All others add nothing.
HF_NORM = {
    "unknown": "plm",
    "one": "gemma gemma2 gemma3 gemma3_text minimax_m3_vl minimax_m3_vl_text nemotron"
    " recurrent_gemma t5gemma t5gemma2 vaultgemma",
    "one_in_transformers": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next",
    "one_in_step_names": "step3p5 step3p7",
}
#: Model types in which q, k, v, gate, up and the router all read the output of a norm, so that the
#: norm's length is the length of their rows. By the modelling code of transformers and mlx-lm.
NORMS_TELL = (
    "arcee cohere cohere2 deepseek deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5"
    " ernie4_5_moe exaone4 gemma gemma2 gemma3 gemma3_text glm4 glm4_moe glm_moe_dsa"
    " gpt_oss granite granitemoe hunyuan_v1_dense hunyuan_v1_moe kimi_k2 llama minicpm3"
    " minimax_m2 ministral ministral3 mistral mistral3 mixtral nemotron nemotron-nas olmo"
    " olmo2 olmo3 olmoe phi3 phimoe plm qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe"
    " qwen2_vl qwen2_vl_text qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text"
    " qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text seed_oss"
    " smollm3 stablelm starcoder2"
)

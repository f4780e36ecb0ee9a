"""What a model says of itself."""

import dataclasses
from typing import Any, Dict, List, Optional


@dataclasses.dataclass(frozen=True)
class QuantParams:
    """Parameters of an MLX pack."""

    mode: str  #: "affine", "mxfp4", "mxfp8" or "nvfp4"
    bits: int  #: of one value
    group_size: int  #: values along the last axis that share a scale


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary position embedding is stretched to longer texts, as the file says it."""

    type: str
    factor: Optional[float]
    original_max_position_embeddings: Optional[int]
    low_freq_factor: Optional[float]
    high_freq_factor: Optional[float]
    attention_factor: Optional[float]
    beta_fast: Optional[float]
    beta_slow: Optional[float]
    ext_factor: Optional[float]  #: GGUF only
    mscale: Optional[float]  #: config.json only
    mscale_all_dim: Optional[float]  #: config.json only
    long_factor: List[float]  #: GGUF files hold the tensor rope_factors_long instead
    short_factor: List[float]  #: the same, rope_factors_short


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What a model says of itself: one table for all formats. None is what it does not say."""

    architecture: Optional[str]
    dim: Optional[int]
    n_layers: Optional[int]
    n_heads: Optional[int]  #: the most of all layers, where they differ
    n_kv_heads: Optional[int]
    head_dim: Optional[int]
    ffn_dim: Optional[int]
    n_heads_of_layers: List[int]  #: one a layer where they differ, else empty
    n_kv_heads_of_layers: List[int]
    ffn_dim_of_layers: List[int]
    vocab_size: Optional[int]
    max_seq_len: Optional[int]
    norm_eps: Optional[float]
    rope_theta: float
    rope_scaling: Optional[RopeScaling]
    rope_style: Optional[str]  #: "half", "interleaved", "mrope", "imrope", "none"; None: not known
    #: to add to a stored norm weight before it is used; None: not known
    norm_weight_offset: Optional[float]
    sliding_window: int
    n_experts: int
    n_experts_used: int
    moe_ffn_dim: int
    attn_logit_softcap: Optional[float]
    final_logit_softcap: Optional[float]
    tie_word_embeddings: bool
    quantization: Optional[QuantParams]  #: of packs that have no entry of their own
    quantization_method: Optional[str]  #: of a scheme that is not decoded, as "gptq"
    bos_token_id: Optional[int]
    eos_token_ids: List[int]
    rope_dim: Optional[int]  #: elements of a head that rotary embedding turns
    rope_theta_local: Optional[float]  #: of layers with a sliding window
    rope_sections: List[int]  #: of mrope; GGUF files have a fourth, mostly 0
    v_head_dim: Optional[int]  #: elements of a value's head
    q_lora_rank: Optional[int]  #: of latent attention (MLA), as the next three
    kv_lora_rank: Optional[int]
    qk_nope_head_dim: Optional[int]
    qk_rope_head_dim: Optional[int]
    shared_ffn_dim: Optional[int]  #: of the shared experts
    n_shared_experts: Optional[int]
    first_dense_layers: Optional[int]  #: layers before the first with experts
    expert_weights_scale: Optional[float]  #: multiplies the weights of chosen experts
    expert_gating: Optional[str]  #: as "softmax", "sigmoid"
    activation: Optional[str]  #: of the feed-forward part, as "silu"
    query_scale: Optional[float]  #: multiplies attention scores, instead of 1 / sqrt(head_dim)
    embedding_scale: Optional[float]  #: multiplies embeddings
    residual_scale: Optional[float]  #: multiplies what a block adds to the residual
    logit_scale: Optional[float]  #: multiplies logits
    #: one a layer: "full", "sliding", "linear", "conv", "recurrent", "other"
    layer_kinds: List[str]
    sliding_window_pattern: Optional[int]  #: every n-th layer attends to all tokens
    #: all of config.json; None for models without one
    raw: Optional[Dict[str, Any]] = dataclasses.field(repr=False, compare=False)

    def as_dict(self) -> Dict[str, Any]:
        """The table as plain values, without `raw`."""
        table = dataclasses.asdict(dataclasses.replace(self, raw=None))
        del table["raw"]
        return table


def config_of(table: Dict[str, Any]) -> ModelConfig:
    if table["quantization"] is not None:
        table["quantization"] = QuantParams(*table["quantization"])
    if table["rope_scaling"] is not None:
        table["rope_scaling"] = RopeScaling(**table["rope_scaling"])
    return ModelConfig(**table)

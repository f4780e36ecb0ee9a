"""The configuration table of a model."""

import dataclasses
from typing import Any, Dict, List, Optional


@dataclasses.dataclass(frozen=True)
class QuantParams:
    """Quantisation parameters of an MLX pack."""

    mode: str  #: "affine", "mxfp4", "mxfp8" or "nvfp4"
    bits: int  #: bits of one value
    group_size: int  #: consecutive values on the last axis that share a scale


@dataclasses.dataclass(frozen=True)
class SchemeParams:
    """Parameters of a weight that a quantisation scheme stores.

    Each block of `group_rows` rows and `group_columns` columns of a matrix has a scale; blocks at
    the edges may be smaller.
    """

    bits: int  #: bits of one value
    group_rows: int
    group_columns: int
    symmetric: bool  #: False: a zero point is subtracted from the codes


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Parameters that extend rotary position embedding to longer texts, as the file gives them."""

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
    long_factor: List[float]  #: empty for GGUF, which has a tensor rope_factors_long
    short_factor: List[float]  #: empty for GGUF, which has a tensor rope_factors_short


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model, with the same fields for all formats.

    A field is None if the model's files do not define it.
    """

    architecture: Optional[str]
    dim: Optional[int]
    n_layers: Optional[int]
    n_heads: Optional[int]  #: the maximum, if layers differ
    n_kv_heads: Optional[int]
    head_dim: Optional[int]
    ffn_dim: Optional[int]
    n_heads_of_layers: List[int]  #: one for each layer if they differ, else empty
    n_kv_heads_of_layers: List[int]
    ffn_dim_of_layers: List[int]
    vocab_size: Optional[int]
    max_seq_len: Optional[int]
    norm_eps: Optional[float]
    rope_theta: float
    rope_scaling: Optional[RopeScaling]
    rope_style: Optional[str]  #: "half", "interleaved", "mrope", "imrope" or "none"; None: unknown
    #: added to a stored norm weight before it is used; None: unknown
    norm_weight_offset: Optional[float]
    sliding_window: int
    n_experts: int
    n_experts_used: int
    moe_ffn_dim: int
    attn_logit_softcap: Optional[float]
    final_logit_softcap: Optional[float]
    tie_word_embeddings: bool
    quantization: Optional[QuantParams]  #: default for packs without an entry of their own
    quantization_method: Optional[str]  #: `quant_method` of the file, such as "gptq"
    bos_token_id: Optional[int]
    eos_token_ids: List[int]
    rope_dim: Optional[int]  #: elements of a head that rotary embedding rotates
    rope_theta_local: Optional[float]  #: for layers with a sliding window
    rope_sections: List[int]  #: sections of mrope; GGUF has a fourth, usually 0
    v_head_dim: Optional[int]  #: elements of a head of v
    q_lora_rank: Optional[int]  #: of latent attention (MLA), like the next three
    kv_lora_rank: Optional[int]
    qk_nope_head_dim: Optional[int]
    qk_rope_head_dim: Optional[int]
    shared_ffn_dim: Optional[int]  #: ffn_dim of the shared experts
    n_shared_experts: Optional[int]
    first_dense_layers: Optional[int]  #: number of layers before the first with experts
    expert_weights_scale: Optional[float]  #: multiplies the weights of selected experts
    expert_gating: Optional[str]  #: such as "softmax" or "sigmoid"
    activation: Optional[str]  #: of the feed-forward part, such as "silu"
    query_scale: Optional[float]  #: multiplies attention scores, instead of 1 / sqrt(head_dim)
    embedding_scale: Optional[float]  #: multiplies embeddings
    residual_scale: Optional[float]  #: multiplies what a block adds to the residual
    logit_scale: Optional[float]  #: multiplies logits
    #: one for each layer: "full", "sliding", "linear", "conv", "recurrent", "other"
    layer_kinds: List[str]
    sliding_window_pattern: Optional[int]  #: every n-th layer attends to all tokens: n
    #: the whole of config.json; None for models without one
    raw: Optional[Dict[str, Any]] = dataclasses.field(repr=False, compare=False)

    def as_dict(self) -> Dict[str, Any]:
        """Returns the fields as plain values, without `raw`."""
        table = dataclasses.asdict(dataclasses.replace(self, raw=None))
        del table["raw"]
        return table


def config_of(table: Dict[str, Any]) -> ModelConfig:
    """Converts the compiled module's table."""
    if table["quantization"] is not None:
        table["quantization"] = QuantParams(*table["quantization"])
    if table["rope_scaling"] is not None:
        table["rope_scaling"] = RopeScaling(**table["rope_scaling"])
    return ModelConfig(**table)

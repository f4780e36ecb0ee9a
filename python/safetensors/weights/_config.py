"""The configuration table of a model."""

import dataclasses
from collections.abc import Iterator
from typing import Any


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
    factor: float | None
    original_max_position_embeddings: int | None
    low_freq_factor: float | None
    high_freq_factor: float | None
    attention_factor: float | None
    beta_fast: float | None
    beta_slow: float | None
    ext_factor: float | None  #: GGUF only
    mscale: float | None  #: config.json only
    mscale_all_dim: float | None  #: config.json only
    long_factor: list[float]  #: empty for GGUF, which has a tensor rope_factors_long
    short_factor: list[float]  #: empty for GGUF, which has a tensor rope_factors_short


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model, with the same fields for all formats.

    A field is None if the model's files do not define it.
    """

    architecture: str | None
    dim: int | None
    n_layers: int | None
    n_heads: int | None  #: the maximum, if layers differ
    n_kv_heads: int | None
    head_dim: int | None
    ffn_dim: int | None
    n_heads_of_layers: list[int]  #: one for each layer if they differ, else empty
    n_kv_heads_of_layers: list[int]
    ffn_dim_of_layers: list[int]
    vocab_size: int | None
    max_seq_len: int | None
    norm_eps: float | None
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_style: str | None  #: "half", "interleaved", "mrope", "imrope" or "none"; None: unknown
    #: added to a stored norm weight before it is used; None: unknown
    norm_weight_offset: float | None
    sliding_window: int
    n_experts: int
    n_experts_used: int
    moe_ffn_dim: int
    attn_logit_softcap: float | None
    final_logit_softcap: float | None
    tie_word_embeddings: bool
    quantization: QuantParams | None  #: default for packs without an entry of their own
    quantization_method: str | None  #: `quant_method` of the file, such as "gptq"
    bos_token_id: int | None
    eos_token_ids: list[int]
    rope_dim: int | None  #: elements of a head that rotary embedding rotates
    rope_theta_local: float | None  #: for layers with a sliding window
    rope_sections: list[int]  #: sections of mrope; GGUF has a fourth, usually 0
    v_head_dim: int | None  #: elements of a head of v
    q_lora_rank: int | None  #: of latent attention (MLA), like the next three
    kv_lora_rank: int | None
    qk_nope_head_dim: int | None
    qk_rope_head_dim: int | None
    shared_ffn_dim: int | None  #: ffn_dim of the shared experts
    n_shared_experts: int | None
    first_dense_layers: int | None  #: number of layers before the first with experts
    expert_weights_scale: float | None  #: multiplies the weights of selected experts
    expert_gating: str | None  #: such as "softmax" or "sigmoid"
    activation: str | None  #: of the feed-forward part, such as "silu"
    query_scale: float | None  #: multiplies attention scores, instead of 1 / sqrt(head_dim)
    embedding_scale: float | None  #: multiplies embeddings
    residual_scale: float | None  #: multiplies what a block adds to the residual
    logit_scale: float | None  #: multiplies logits
    #: one for each layer: "full", "sliding", "linear", "conv", "recurrent", "other"
    layer_kinds: list[str]
    sliding_window_pattern: int | None  #: every n-th layer attends to all tokens: n
    #: the whole of config.json; None for models without one
    raw: dict[str, Any] | None = dataclasses.field(repr=False, compare=False)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._set_fields())
        return f"ModelConfig({said})"

    def _set_fields(self) -> Iterator[tuple[str, Any]]:
        """Yields the fields that have a value, but `raw`. In a field that is never None, 0 is none:
        no window, no experts."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_none = value is None or value == [] or (field.type in (int, "int") and value == 0)
            if field.repr and not is_none:
                yield field.name, value

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, without `raw`."""
        table = dataclasses.asdict(dataclasses.replace(self, raw=None))
        del table["raw"]
        return table


def config_of(table: dict[str, Any]) -> ModelConfig:
    """Converts the compiled module's table."""
    if table["quantization"] is not None:
        table["quantization"] = QuantParams(*table["quantization"])
    if table["rope_scaling"] is not None:
        table["rope_scaling"] = RopeScaling(**table["rope_scaling"])
    return ModelConfig(**table)

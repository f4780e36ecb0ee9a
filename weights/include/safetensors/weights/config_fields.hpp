// The fields of a model's configuration with their names, for bindings of other languages.
#pragma once

#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

/// Calls `visit(name, value)` for each field, in the order of the struct. `value` is the member
/// itself, and `name` a literal, spelled as the member.
template <typename Visit>
void for_each_field(const RopeScaling& scaling, Visit&& visit) {
  visit("type", scaling.type);
  visit("factor", scaling.factor);
  visit("original_max_position_embeddings", scaling.original_max_position_embeddings);
  visit("low_freq_factor", scaling.low_freq_factor);
  visit("high_freq_factor", scaling.high_freq_factor);
  visit("attention_factor", scaling.attention_factor);
  visit("beta_fast", scaling.beta_fast);
  visit("beta_slow", scaling.beta_slow);
  visit("ext_factor", scaling.ext_factor);
  visit("mscale", scaling.mscale);
  visit("mscale_all_dim", scaling.mscale_all_dim);
  visit("long_factor", scaling.long_factor);
  visit("short_factor", scaling.short_factor);
}

/// The same.
template <typename Visit>
void for_each_field(const QuantParams& quant, Visit&& visit) {
  visit("mode", quant.mode);
  visit("bits", quant.bits);
  visit("group_size", quant.group_size);
}

/// The same, for all fields but `raw`. Those that are structs are one field each.
template <typename Visit>
void for_each_field(const ModelConfig& config, Visit&& visit) {
  visit("architecture", config.architecture);
  visit("dim", config.dim);
  visit("n_layers", config.n_layers);
  visit("n_heads", config.n_heads);
  visit("n_kv_heads", config.n_kv_heads);
  visit("head_dim", config.head_dim);
  visit("ffn_dim", config.ffn_dim);
  visit("n_heads_of_layers", config.n_heads_of_layers);
  visit("n_kv_heads_of_layers", config.n_kv_heads_of_layers);
  visit("ffn_dim_of_layers", config.ffn_dim_of_layers);
  visit("vocab_size", config.vocab_size);
  visit("max_seq_len", config.max_seq_len);
  visit("norm_eps", config.norm_eps);
  visit("rope_theta", config.rope_theta);
  visit("rope_scaling", config.rope_scaling);
  visit("rope_style", config.rope_style);
  visit("norm_weight_offset", config.norm_weight_offset);
  visit("sliding_window", config.sliding_window);
  visit("n_experts", config.n_experts);
  visit("n_experts_used", config.n_experts_used);
  visit("moe_ffn_dim", config.moe_ffn_dim);
  visit("attn_logit_softcap", config.attn_logit_softcap);
  visit("final_logit_softcap", config.final_logit_softcap);
  visit("tie_word_embeddings", config.tie_word_embeddings);
  visit("quantization", config.quantization);
  visit("quantization_method", config.quantization_method);
  visit("bos_token_id", config.bos_token_id);
  visit("eos_token_ids", config.eos_token_ids);
  visit("rope_dim", config.rope_dim);
  visit("rope_theta_local", config.rope_theta_local);
  visit("rope_sections", config.rope_sections);
  visit("v_head_dim", config.v_head_dim);
  visit("q_lora_rank", config.q_lora_rank);
  visit("kv_lora_rank", config.kv_lora_rank);
  visit("qk_nope_head_dim", config.qk_nope_head_dim);
  visit("qk_rope_head_dim", config.qk_rope_head_dim);
  visit("shared_ffn_dim", config.shared_ffn_dim);
  visit("n_shared_experts", config.n_shared_experts);
  visit("first_dense_layers", config.first_dense_layers);
  visit("expert_weights_scale", config.expert_weights_scale);
  visit("expert_gating", config.expert_gating);
  visit("activation", config.activation);
  visit("query_scale", config.query_scale);
  visit("embedding_scale", config.embedding_scale);
  visit("residual_scale", config.residual_scale);
  visit("logit_scale", config.logit_scale);
  visit("layer_kinds", config.layer_kinds);
  visit("sliding_window_pattern", config.sliding_window_pattern);
}

}  // namespace safetensors::weights

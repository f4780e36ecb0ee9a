// A model's configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"
#include "safetensors/weights/json.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Which elements of a query or key form the pairs that rotary position embedding rotates. d is the
/// number of rotated elements: rope_dim, or the whole head.
enum class RopeStyle : std::uint8_t {
  half,         ///< element i with i + d/2
  interleaved,  ///< element 2i with 2i + 1
  mrope,        ///< as half; blocks of rope_sections elements take the angles of several positions
  imrope,       ///< as mrope, but the sections alternate; for plain text both equal half
  none,         ///< the model has no rotary embedding
};

/// How a layer mixes tokens.
enum class LayerKind : std::uint8_t {
  full,       ///< attention to all tokens
  sliding,    ///< attention to the last `sliding_window` tokens
  linear,     ///< linear attention
  conv,       ///< a short convolution
  recurrent,  ///< a recurrent block or state space
  other,      ///< anything else: see the name in the raw configuration
};

/// Each returns the spelling of an enumerator, such as "half"; an empty text for other values.
[[nodiscard]] SAFETENSORS_API std::string_view name(RopeStyle style) noexcept;
[[nodiscard]] SAFETENSORS_API std::string_view name(LayerKind kind) noexcept;

/// How rotary position embedding is scaled to longer texts. Values are those of the file.
struct RopeScaling {
  std::string type;  ///< for example "linear", "llama3", "yarn", "longrope"
  std::optional<double> factor;
  std::optional<std::int64_t> original_max_position_embeddings;
  std::optional<double> low_freq_factor;
  std::optional<double> high_freq_factor;
  std::optional<double> attention_factor;
  std::optional<double> beta_fast;
  std::optional<double> beta_slow;
  std::optional<double> ext_factor;      ///< GGUF only
  std::optional<double> mscale;          ///< config.json only
  std::optional<double> mscale_all_dim;  ///< config.json only
  std::vector<double> long_factor;       ///< GGUF files hold the tensor rope_factors_long instead
  std::vector<double> short_factor;      ///< the same, rope_factors_short
};

/// The configuration of a model, with the same fields for all formats. Read from config.json and
/// generation_config.json, or from the metadata of a GGUF file. A field that the file does not
/// state is empty.
///
/// Integers are in the range from 0 to 2^31 - 1. They come from the file: check them before they
/// determine a size. `for_each_field` of config_fields.hpp visits the fields.
struct ModelConfig {
  std::optional<std::string> architecture;  ///< as "llama"
  std::optional<std::int64_t> dim;
  std::optional<std::int64_t> n_layers;
  std::optional<std::int64_t> n_heads;          ///< the maximum, if layers differ
  std::optional<std::int64_t> n_kv_heads;       ///< likewise; n_heads if not stated
  std::optional<std::int64_t> head_dim;         ///< dim / n_heads if not stated
  std::optional<std::int64_t> ffn_dim;          ///< the maximum, if layers differ
  std::vector<std::int64_t> n_heads_of_layers;  ///< one for each layer if they differ, else empty
  std::vector<std::int64_t> n_kv_heads_of_layers;
  std::vector<std::int64_t> ffn_dim_of_layers;
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> max_seq_len;
  std::optional<double> norm_eps;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  /// Empty if the architecture is not known: warnings() then contains a warning.
  std::optional<RopeStyle> rope_style;
  /// The number to add to a stored norm weight before multiplying by it: 1 for Gemma's checkpoints.
  /// Empty if it is not known: warnings() then contains a warning. In some models it differs
  /// between norms: see WeightProvider::norm_weight_offset_of().
  std::optional<double> norm_weight_offset;
  std::int64_t sliding_window = 0;
  std::int64_t n_experts = 0;
  std::int64_t n_experts_used = 0;
  std::int64_t moe_ffn_dim = 0;
  std::optional<double> attn_logit_softcap;
  std::optional<double> final_logit_softcap;
  bool tie_word_embeddings = false;         ///< if not stated: whether there is no output tensor
  std::optional<QuantParams> quantization;  ///< of packs that have no entry for themselves
  /// The name of another scheme, such as "gptq", whose tensors are not decoded.
  std::optional<std::string> quantization_method;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;

  std::optional<std::int64_t> rope_dim;    ///< rotated elements of a head
  std::optional<double> rope_theta_local;  ///< of layers with a sliding window
  /// Of mrope. GGUF files have a fourth section, mostly 0.
  std::vector<std::int64_t> rope_sections;
  std::optional<std::int64_t> v_head_dim;   ///< elements of a value's head
  std::optional<std::int64_t> q_lora_rank;  ///< of latent attention (MLA), like the next three
  std::optional<std::int64_t> kv_lora_rank;
  std::optional<std::int64_t> qk_nope_head_dim;
  std::optional<std::int64_t> qk_rope_head_dim;
  std::optional<std::int64_t> shared_ffn_dim;  ///< of the shared experts
  std::optional<std::int64_t> n_shared_experts;
  std::optional<std::int64_t> first_dense_layers;  ///< layers before the first with experts
  std::optional<double> expert_weights_scale;      ///< factor of the weights of selected experts
  std::optional<std::string> expert_gating;        ///< for example "softmax", "sigmoid"
  std::optional<std::string> activation;           ///< of the feed-forward part, for example "silu"
  std::optional<double> query_scale;  ///< factor of attention scores, instead of 1 / sqrt(head_dim)
  std::optional<double> embedding_scale;  ///< factor of embeddings
  std::optional<double> residual_scale;   ///< factor of what a block adds to the residual
  std::optional<double> logit_scale;      ///< factor of logits
  std::vector<LayerKind> layer_kinds;     ///< one for each layer
  std::optional<std::int64_t> sliding_window_pattern;  ///< every n-th layer attends to all tokens
  /// The whole config.json; null for models without one.
  std::shared_ptr<const Json> raw;
};

}  // namespace safetensors::weights

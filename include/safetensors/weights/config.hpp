// What a model says of itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Where rotary position embedding finds the two halves of a pair.
enum class RopeStyle : std::uint8_t {
  half,         ///< element i with i + d/2: Hugging Face, MLX, most GGUF
  interleaved,  ///< element 2i with 2i + 1: GGUF of the llama family, as it is stored
};

struct RopeScaling {
  std::string type;  ///< as "linear", "llama3", "yarn"
  std::optional<double> factor;
  std::optional<std::int64_t> original_max_position_embeddings;
  std::optional<double> low_freq_factor;
  std::optional<double> high_freq_factor;
};

/// One table for all formats, out of config.json and generation_config.json, or of a GGUF file's
/// metadata. Values are as the file has them, within 0 and 2^31: they size nothing here, and
/// should size nothing unchecked elsewhere. Nothing stands for what the file does not say.
struct ModelConfig {
  std::optional<std::string> architecture;  ///< as "llama"
  std::optional<std::int64_t> dim;
  std::optional<std::int64_t> n_layers;
  std::optional<std::int64_t> n_heads;          ///< the most of all layers, where they differ
  std::optional<std::int64_t> n_kv_heads;       ///< the same; n_heads when not said
  std::optional<std::int64_t> head_dim;         ///< dim / n_heads when not said
  std::optional<std::int64_t> ffn_dim;          ///< the most of all layers, where they differ
  std::vector<std::int64_t> n_heads_of_layers;  ///< one a layer where they differ, else empty
  std::vector<std::int64_t> n_kv_heads_of_layers;
  std::vector<std::int64_t> ffn_dim_of_layers;
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> max_seq_len;
  std::optional<double> norm_eps;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  RopeStyle rope_style = RopeStyle::half;
  /// To be added to a stored norm weight before multiplying by it: 1 for Gemma's checkpoints.
  double norm_weight_offset = 0.0;
  std::int64_t sliding_window = 0;
  std::int64_t n_experts = 0;
  std::int64_t n_experts_used = 0;
  std::int64_t moe_ffn_dim = 0;
  std::optional<double> attn_logit_softcap;
  std::optional<double> final_logit_softcap;
  bool tie_word_embeddings = false;  ///< when not said: whether the file has no output tensor
  std::optional<QuantParams> quantization;         ///< of packs that have no entry of their own
  std::optional<std::string> quantization_method;  ///< of another scheme, as "gptq": not decoded
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
};

}  // namespace safetensors::weights

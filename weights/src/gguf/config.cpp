#include "gguf/config.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/fail.hpp"
#include "config/rules.hpp"
#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

/// Metadata whose accessors check types and ranges. Keys are relative to the architecture:
/// "rope.freq_base" stands for "llama.rope.freq_base".
class Table {
 public:
  Table(const ModelMetadata& metadata, std::string architecture, const std::filesystem::path& path)
      : metadata_(&metadata), prefix_(std::move(architecture) + "."), path_(&path) {}

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    return integer_at(prefix_ + std::string(key));
  }
  /// Takes the whole key.
  [[nodiscard]] std::optional<std::int64_t> integer_at(const std::string& key) const {
    const MetaValue* value = metadata_->find(key);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, key);
  }
  [[nodiscard]] std::optional<double> number(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      const std::string whole = prefix_ + std::string(key);
      const MetaValue* value = metadata_->find(whole);
      if (value == nullptr) continue;
      const std::optional<double> number = value->as_float();
      if (!number) refuse(whole, "a float", *value);
      return number;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const {
    const std::string whole = prefix_ + std::string(key);
    const MetaValue* value = metadata_->find(whole);
    if (value == nullptr) return std::nullopt;
    const std::optional<std::string_view> text = value->as_string();
    if (!text || !value->is_utf8()) refuse(whole, "text", *value);
    return std::string(*text);
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const std::string whole = prefix_ + std::string(key);
    const MetaValue* value = metadata_->find(whole);
    if (value == nullptr) return std::nullopt;
    if (!value->as_bool()) refuse(whole, "a bool", *value);
    return value->as_bool();
  }
  [[nodiscard]] bool has_array(std::string_view key) const {
    const MetaValue* value = metadata_->find(prefix_ + std::string(key));
    return value != nullptr && value->type() == MetaType::array;
  }
  /// Returns an array of bools, or of integers in their place; empty if there is none.
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const {
    const std::string whole = prefix_ + std::string(key);
    std::vector<bool> values;
    const MetaValue* value = metadata_->find(whole);
    const auto array = value == nullptr ? std::nullopt : value->as_array();
    if (!array) return values;
    for (const MetaValue element : *array) {
      const std::optional<bool> truth = element.as_bool();
      values.push_back(truth ? *truth : integer_of(element, whole) != 0);
    }
    return values;
  }
  /// Returns an array of integers; empty if there is none.
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const {
    const std::string whole = prefix_ + std::string(key);
    std::vector<std::int64_t> values;
    const MetaValue* value = metadata_->find(whole);
    if (value == nullptr) return values;
    const std::optional<MetaArray> array = value->as_array();
    if (!array) refuse(whole, "an array", *value);
    for (const MetaValue element : *array) values.push_back(integer_of(element, whole));
    return values;
  }
  /// Reads an integer, or an array with one for each layer.
  void per_layer(std::string_view key, std::optional<std::int64_t>& most,
                 std::vector<std::int64_t>& layers) const {
    const std::string whole = prefix_ + std::string(key);
    const MetaValue* value = metadata_->find(whole);
    if (value == nullptr) return;
    const std::optional<MetaArray> array = value->as_array();
    if (!array) {
      most = integer_of(*value, whole);
      return;
    }
    for (const MetaValue element : *array) layers.push_back(integer_of(element, whole));
    if (!layers.empty()) most = *std::ranges::max_element(layers);
  }

 private:
  [[nodiscard]] std::int64_t integer_of(const MetaValue& value, const std::string& key) const {
    const bool is_integer = value.as_int64() || value.as_uint64();
    if (!is_integer) refuse(key, "an integer", value);
    const std::int64_t number = value.as_int64().value_or(-1);
    if (number < 0 || number >= kIntegerEnd) {
      fail(Errc::config, *path_, key, "the value is not within 0 and 2^31");
    }
    return number;
  }
  [[noreturn]] void refuse(const std::string& key, std::string_view wanted,
                           const MetaValue& found) const {
    fail(Errc::config, *path_, key,
         std::string(wanted) + " was expected, not " + std::string(name(found.type())));
  }

  const ModelMetadata* metadata_;
  std::string prefix_;
  const std::filesystem::path* path_;
};

std::optional<std::string> architecture_of(const ModelMetadata& metadata,
                                           const std::filesystem::path& path) {
  constexpr std::string_view kKey = "general.architecture";
  const MetaValue* value = metadata.find(kKey);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::string_view> text = value->as_string();
  if (!text || !value->is_utf8()) fail(Errc::config, path, kKey, "text was expected");
  return std::string(*text);
}

std::optional<std::int64_t> token_count(const ModelMetadata& metadata) {
  const MetaValue* tokens = metadata.find(kTokens);
  const auto array = tokens == nullptr ? std::nullopt : tokens->as_array();
  if (!array || array->size() >= static_cast<std::uint64_t>(kIntegerEnd)) return std::nullopt;
  return static_cast<std::int64_t>(array->size());
}

std::optional<RopeScaling> rope_scaling(const Table& table) {
  RopeScaling scaling;
  scaling.type = table.text("rope.scaling.type").value_or("");
  scaling.factor = table.number({"rope.scaling.factor", "rope.scale_linear"});
  // As in llama.cpp, a factor without a type means linear scaling, and a factor of 0 means none.
  if (scaling.type.empty() && scaling.factor.value_or(0.0) != 0.0) scaling.type = "linear";
  if (scaling.type.empty() || scaling.type == "none") return std::nullopt;
  scaling.original_max_position_embeddings = table.integer("rope.scaling.original_context_length");
  scaling.low_freq_factor = table.number({"rope.scaling.low_freq_factor"});
  scaling.high_freq_factor = table.number({"rope.scaling.high_freq_factor"});
  scaling.attention_factor =
      table.number({"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"});
  scaling.beta_fast = table.number({"rope.scaling.yarn_beta_fast"});
  scaling.beta_slow = table.number({"rope.scaling.yarn_beta_slow"});
  scaling.ext_factor = table.number({"rope.scaling.yarn_ext_factor"});
  return scaling;
}

void read_attention(const Table& table, ModelConfig& model) {
  model.rope_dim = table.integer("rope.dimension_count");
  model.rope_theta_local = table.number({"rope.freq_base_swa"});
  model.rope_sections = table.integers("rope.dimension_sections");
  model.q_lora_rank = table.integer("attention.q_lora_rank");
  model.kv_lora_rank = table.integer("attention.kv_lora_rank");
  // With latent attention (MLA), key_length and value_length may be the lengths of the latent
  // vectors. The lengths of the heads then have keys that end in _mla. A key's head is the rotated
  // part (rope_dim) and the rest (qk_nope_head_dim).
  model.v_head_dim = table.integer("attention.value_length_mla");
  if (!model.v_head_dim) model.v_head_dim = table.integer("attention.value_length");
  if (model.kv_lora_rank) {
    model.qk_rope_head_dim = model.rope_dim;
    std::optional<std::int64_t> whole = table.integer("attention.key_length_mla");
    if (!whole) whole = table.integer("attention.key_length");
    if (whole && model.rope_dim && *whole >= *model.rope_dim) {
      model.qk_nope_head_dim = *whole - *model.rope_dim;
    }
  }
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  if (!table.has_array(kPattern)) {
    model.sliding_window_pattern = table.integer(kPattern);
    return;
  }
  for (const bool slides : table.booleans(kPattern)) {
    model.layer_kinds.push_back(slides ? LayerKind::sliding : LayerKind::full);
  }
}

/// Returns the name of a gating function by its number in llama.cpp
/// (llama_expert_gating_func_type).
std::optional<std::string> gating_name(const std::optional<std::int64_t>& number) {
  constexpr std::string_view kNames[] = {"softmax", "sigmoid", "softmax_weight", "sqrtsoftplus"};
  if (!number || *number < 1 || *number > std::ssize(kNames)) return std::nullopt;
  return std::string(kNames[*number - 1]);
}

void read_experts(const Table& table, ModelConfig& model) {
  model.n_experts = table.integer("expert_count").value_or(0);
  model.n_experts_used = table.integer("expert_used_count").value_or(0);
  model.moe_ffn_dim = table.integer("expert_feed_forward_length").value_or(0);
  model.shared_ffn_dim = table.integer("expert_shared_feed_forward_length");
  model.n_shared_experts = table.integer("expert_shared_count");
  model.first_dense_layers = table.integer("leading_dense_block_count");
  model.expert_weights_scale = table.number({"expert_weights_scale"});
  model.expert_gating = gating_name(table.integer("expert_gating_func"));
}

void read_scales(const Table& table, ModelConfig& model) {
  model.activation = table.text("hidden_activation");
  model.query_scale = table.number({"attention.scale"});
  model.embedding_scale = table.number({"embedding_scale"});
  model.residual_scale = table.number({"residual_scale"});
  model.logit_scale = table.number({"logit_scale"});
  // Architectures whose graph in llama.cpp divides the logits by this value.
  constexpr std::string_view kDividing[] = {"granite",     "granitehybrid", "granitemoe",
                                            "granite_swa", "graniteswitch", "minicpm"};
  const bool divides =
      std::ranges::find(kDividing, model.architecture.value_or("")) != std::end(kDividing);
  if (model.logit_scale && divides && *model.logit_scale != 0.0) {
    model.logit_scale = 1.0 / *model.logit_scale;
  }
}

std::optional<RopeStyle> rope_style(const Table& table, std::string_view architecture) {
  const auto known = find_gguf_architecture(architecture);
  if (!known) return std::nullopt;
  const auto or_mrope = [&](RopeStyle style) {
    const std::vector<std::int64_t> sections = table.integers("rope.dimension_sections");
    const bool splits = sections.size() > 1 && sections[0] > 0 && sections[1] > 0;
    return splits ? RopeStyle::mrope : style;
  };
  switch (known->rope) {
    case RopeRule::half_or_mrope:
      return or_mrope(RopeStyle::half);
    case RopeRule::interleaved_or_mrope:
      return or_mrope(RopeStyle::interleaved);
    case RopeRule::interleaved_or_none:
      return table.boolean("rope.scaling.finetuned").value_or(true) ? RopeStyle::interleaved
                                                                    : RopeStyle::none;
    default:
      return fixed_style(known->rope);
  }
}

}  // namespace

ModelConfig read_gguf_config(const ModelMetadata& metadata, std::int64_t embedding_rows,
                             bool has_output, const std::filesystem::path& path) {
  ModelConfig model;
  model.architecture = architecture_of(metadata, path);
  model.tie_word_embeddings = !has_output;
  const Table table(metadata, model.architecture.value_or(""), path);
  model.dim = table.integer("embedding_length");
  model.n_layers = table.integer("block_count");
  table.per_layer("attention.head_count", model.n_heads, model.n_heads_of_layers);
  table.per_layer("attention.head_count_kv", model.n_kv_heads, model.n_kv_heads_of_layers);
  model.head_dim = table.integer("attention.key_length");
  fill_heads(model);
  table.per_layer("feed_forward_length", model.ffn_dim, model.ffn_dim_of_layers);
  model.vocab_size = table.integer("vocab_size");
  if (!model.vocab_size) model.vocab_size = token_count(metadata);
  if (!model.vocab_size && embedding_rows > 0 && embedding_rows < kIntegerEnd) {
    model.vocab_size = embedding_rows;
  }
  model.max_seq_len = table.integer("context_length");
  model.norm_eps =
      table.number({"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"});
  model.rope_theta = table.number({"rope.freq_base"}).value_or(model.rope_theta);
  model.rope_scaling = rope_scaling(table);
  model.rope_style = rope_style(table, model.architecture.value_or(""));
  model.norm_weight_offset = 0.0;  // converters store weights that are multiplied as they are
  model.sliding_window = table.integer("attention.sliding_window").value_or(0);
  read_attention(table, model);
  read_experts(table, model);
  read_scales(table, model);
  model.attn_logit_softcap = table.number({"attn_logit_softcapping"});
  model.final_logit_softcap = table.number({"final_logit_softcapping"});
  model.bos_token_id = table.integer_at("tokenizer.ggml.bos_token_id");
  if (const auto eos = table.integer_at("tokenizer.ggml.eos_token_id")) {
    model.eos_token_ids.push_back(*eos);
  }
  return model;
}

}  // namespace safetensors::weights

#include "weights/gguf_config.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/config_rules.hpp"
#include "weights/fail.hpp"

namespace safetensors::weights {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";

/// Metadata with the errors that its values may raise. Keys are of the architecture.
class Table {
 public:
  Table(const Metadata& metadata, std::string architecture, const std::filesystem::path& path)
      : metadata_(&metadata), prefix_(std::move(architecture) + "."), path_(&path) {}

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    return integer_at(prefix_ + std::string(key));
  }
  /// The key as it is, without the architecture.
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
  /// An integer, or one for each layer.
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

  const Metadata* metadata_;
  std::string prefix_;
  const std::filesystem::path* path_;
};

std::optional<std::string> architecture_of(const Metadata& metadata,
                                           const std::filesystem::path& path) {
  constexpr std::string_view kKey = "general.architecture";
  const MetaValue* value = metadata.find(kKey);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::string_view> text = value->as_string();
  if (!text || !value->is_utf8()) fail(Errc::config, path, kKey, "text was expected");
  return std::string(*text);
}

std::optional<std::int64_t> token_count(const Metadata& metadata) {
  const MetaValue* tokens = metadata.find(kTokens);
  const auto array = tokens == nullptr ? std::nullopt : tokens->as_array();
  if (!array || array->size() >= static_cast<std::uint64_t>(kIntegerEnd)) return std::nullopt;
  return static_cast<std::int64_t>(array->size());
}

std::optional<RopeScaling> rope_scaling(const Table& table) {
  RopeScaling scaling;
  scaling.type = table.text("rope.scaling.type").value_or("");
  if (scaling.type.empty() || scaling.type == "none") return std::nullopt;
  scaling.factor = table.number({"rope.scaling.factor"});
  scaling.original_max_position_embeddings = table.integer("rope.scaling.original_context_length");
  scaling.low_freq_factor = table.number({"rope.scaling.low_freq_factor"});
  scaling.high_freq_factor = table.number({"rope.scaling.high_freq_factor"});
  return scaling;
}

}  // namespace

ModelConfig read_gguf_config(const Metadata& metadata, std::int64_t embedding_rows, bool has_output,
                             const std::filesystem::path& path) {
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
  const bool interleaved = model.architecture == "llama" || model.architecture == "mistral3";
  model.rope_style = interleaved ? RopeStyle::interleaved : RopeStyle::half;
  model.sliding_window = table.integer("attention.sliding_window").value_or(0);
  model.n_experts = table.integer("expert_count").value_or(0);
  model.n_experts_used = table.integer("expert_used_count").value_or(0);
  model.moe_ffn_dim = table.integer("expert_feed_forward_length").value_or(0);
  model.attn_logit_softcap = table.number({"attn_logit_softcapping"});
  model.final_logit_softcap = table.number({"final_logit_softcapping"});
  model.bos_token_id = table.integer_at("tokenizer.ggml.bos_token_id");
  if (const auto eos = table.integer_at("tokenizer.ggml.eos_token_id")) {
    model.eos_token_ids.push_back(*eos);
  }
  return model;
}

}  // namespace safetensors::weights

#include "weights/gguf_layout.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "weights/fail.hpp"
#include "weights/names.hpp"

namespace safetensors::weights {
namespace {

bool is_one_of(const ModelConfig& config, std::initializer_list<std::string_view> names) {
  return config.architecture && std::ranges::find(names, *config.architecture) != names.end();
}

bool has_reordered_rows(const ModelConfig& config) {
  return is_one_of(config, {"llama", "mistral3"});
}
bool has_raised_norms(const ModelConfig& config) {
  return is_one_of(config, {"gemma", "gemma2", "gemma3"});
}

/// A layer's number of heads, where they differ from layer to layer, else the model's.
std::optional<std::int64_t> heads_of(const std::vector<std::int64_t>& layers,
                                     const std::optional<std::int64_t>& all,
                                     std::string_view layer) {
  std::size_t number = 0;
  std::from_chars(layer.data(), layer.data() + layer.size(), number);  // six digits at most
  if (layers.empty()) return all;
  return number < layers.size() ? std::optional(layers[number]) : std::nullopt;
}

}  // namespace

void check_layout_known(const ModelConfig& config, const std::filesystem::path& path) {
  if (is_one_of(config, {"llama", "mistral3", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma",
                         "gemma2", "gemma3", "phi3"})) {
    return;
  }
  fail(Errc::unsupported, path, "general.architecture",
       "how a checkpoint of `" + clipped(config.architecture.value_or("")) +
           "` is laid out in GGUF is not known, so layout hf cannot be given");
}

Undo undo_of(const TensorInfo& info, const ModelConfig& config, const std::filesystem::path& path) {
  Undo undo;
  undo.lower_by_one = has_raised_norms(config) && info.name.ends_with("norm.weight");
  if (!has_reordered_rows(config) || info.shape.empty()) return undo;
  const NameParts parts = split_param(info.name);
  const LayerModule place = split_layer(parts.module);
  const bool is_q = place.module == "attention.q";
  if (place.layer.empty() || (!is_q && place.module != "attention.k")) return undo;
  if (parts.param != "weight" && parts.param != "bias") return undo;
  const auto heads = is_q ? heads_of(config.n_heads_of_layers, config.n_heads, place.layer)
                          : heads_of(config.n_kv_heads_of_layers, config.n_kv_heads, place.layer);
  const std::int64_t rows = info.shape.front();
  if (rows == 0) return undo;
  if (!heads || *heads == 0 || rows % *heads != 0 || rows / *heads % 2 != 0) {
    fail(Errc::bad_shape, path, info.source,
         std::to_string(rows) + " rows do not divide into " + std::to_string(heads.value_or(0)) +
             " heads of an even number of rows");
  }
  undo.rows.head_rows = static_cast<std::uint64_t>(rows / *heads);
  return undo;
}

void undo_config(ModelConfig& config) {
  config.rope_style = RopeStyle::half;
  if (has_raised_norms(config)) config.norm_weight_offset = 1.0;
}

}  // namespace safetensors::weights

#include "gguf/layout.hpp"

#include <cstdint>
#include <optional>
#include <string>

#include "base/text.hpp"
#include "common/fail.hpp"
#include "config/rules.hpp"
#include "names/names.hpp"
#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

Conversion conversion_of(const ModelConfig& config) {
  const auto known = find_gguf_architecture(config.architecture.value_or(""));
  return known ? known->conversion : Conversion::unrecorded;
}

std::uint64_t number(const std::optional<std::int64_t>& value) noexcept {
  return static_cast<std::uint64_t>(value.value_or(0));
}

}  // namespace

void check_layout_known(const ModelConfig& config, const std::filesystem::path& path) {
  const std::string name = config.architecture.value_or("");
  const auto known = find_gguf_architecture(name);
  std::string_view reason =
      known ? reason_of(known->conversion) : std::string_view("the architecture is not known");
  if (reason.empty() && config.rope_style == RopeStyle::mrope && name.starts_with("glm4")) {
    reason = "rows of q and k are reordered in models with rope.dimension_sections";
  }
  if (reason.empty()) return;
  fail(Errc::unsupported, path, "general.architecture",
       "layout \"hf\" of `" + clipped(name) + "`: " + std::string(reason));
}

Undo undo_of(const WeightInfo& info, const ModelConfig& config, const std::filesystem::path& path) {
  Undo undo;
  const Conversion change = conversion_of(config);
  undo.lower_by_one = change == Conversion::raised_norms && info.name.ends_with("norm.weight");
  if (change != Conversion::reordered_rows || info.shape.empty()) return undo;
  // The second matrix of an adapter has the rows of its weight.
  constexpr std::string_view kAdapter = ".lora_b";
  const bool is_adapter = info.name.ends_with(kAdapter);
  const NameParts parts = split_param(
      std::string_view(info.name).substr(0, info.name.size() - (is_adapter ? kAdapter.size() : 0)));
  const LayerModule place = split_layer(parts.module);
  const bool is_fused = place.module == "attention.qkv";
  const bool has_q = is_fused || place.module == "attention.q";
  const bool has_k = is_fused || place.module == "attention.k";
  if (place.layer.empty() || (!has_q && !has_k)) return undo;
  if (parts.param != "weight" && parts.param != "bias") return undo;
  const auto q = number(of_layer(config.n_heads_of_layers, config.n_heads, place.layer));
  const auto k = number(of_layer(config.n_kv_heads_of_layers, config.n_kv_heads, place.layer));
  const auto rows = static_cast<std::uint64_t>(info.shape.front());
  if (rows == 0) return undo;
  const bool are_stated = (!has_q || q != 0) && (!has_k || k != 0);
  if (is_adapter && !are_stated) {
    fail(Errc::unsupported, path, info.source,
         "layout \"hf\" of an adapter: rows of q and k were reordered by heads, whose number the "
         "file does not state");
  }
  const std::uint64_t head_dim = number(config.head_dim);
  const std::uint64_t v_head_dim = config.v_head_dim ? number(config.v_head_dim) : head_dim;
  // No overflow: each number is below 2^31.
  if (is_fused && (!are_stated || head_dim == 0 || (q + k) * head_dim + k * v_head_dim != rows)) {
    fail(Errc::bad_shape, path, info.source,
         std::to_string(rows) + " rows are not those of " + std::to_string(q) +
             " heads of queries and " + std::to_string(k) + " of keys, of " +
             std::to_string(head_dim) + " rows, and as many of values, of " +
             std::to_string(v_head_dim));
  }
  const std::uint64_t heads = (has_q ? q : 0) + (has_k ? k : 0);
  const std::uint64_t reordered = is_fused ? heads * head_dim : rows;
  if (heads == 0 || reordered % heads != 0 || reordered / heads % 2 != 0) {
    fail(Errc::bad_shape, path, info.source,
         std::to_string(reordered) + " rows do not divide into " + std::to_string(heads) +
             " heads of an even number of rows");
  }
  undo.rows = {reordered / heads, reordered};
  return undo;
}

void undo_config(ModelConfig& config) {
  const Conversion change = conversion_of(config);
  if (change == Conversion::reordered_rows && config.rope_style == RopeStyle::interleaved) {
    config.rope_style = RopeStyle::half;
  }
  if (change == Conversion::raised_norms) config.norm_weight_offset = 1.0;
}

}  // namespace safetensors::weights

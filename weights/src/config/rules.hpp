// Rules that hold for the configurations of all formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/parse_integer.hpp"
#include "names/tables.hpp"
#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

/// Upper bound, exclusive, of the integers of a configuration.
inline constexpr std::int64_t kIntegerEnd = std::int64_t{1} << 31;

/// Fills in what a file leaves out about heads: as many for keys and values as for queries, and a
/// head_dim that divides the width of the model evenly.
inline void fill_heads(ModelConfig& model) noexcept {
  if (!model.n_kv_heads) model.n_kv_heads = model.n_heads;
  if (!model.head_dim && model.dim && model.n_heads && *model.n_heads != 0) {
    model.head_dim = *model.dim / *model.n_heads;
  }
}

/// Returns the value of a layer, from the list of layers if there is one, else the model's; nothing
/// if the list has none for it.
inline std::optional<std::int64_t> of_layer(const std::vector<std::int64_t>& layers,
                                            const std::optional<std::int64_t>& all,
                                            std::string_view layer) noexcept {
  if (layers.empty()) return all;
  const auto number = parse_integer<std::size_t>(layer);
  return number && *number < layers.size() ? std::optional(layers[*number]) : std::nullopt;
}

/// Returns the style of a rule that needs no configuration; nothing for the other rules.
inline std::optional<RopeStyle> fixed_style(RopeRule rule) noexcept {
  switch (rule) {
    case RopeRule::none:
      return RopeStyle::none;
    case RopeRule::half:
      return RopeStyle::half;
    case RopeRule::interleaved:
      return RopeStyle::interleaved;
    case RopeRule::mrope:
      return RopeStyle::mrope;
    case RopeRule::imrope:
      return RopeStyle::imrope;
    default:
      return std::nullopt;
  }
}

}  // namespace safetensors::weights

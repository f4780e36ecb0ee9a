// Which parameters a pack has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/dtype.hpp"
#include "safetensors/weights/config.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// The parameters that a mode has when its entry names none.
[[nodiscard]] QuantParams defaults_of(QuantMode mode) noexcept;
[[nodiscard]] std::optional<QuantMode> parse_quant_mode(std::string_view name) noexcept;
[[nodiscard]] std::string_view name(QuantMode mode) noexcept;
/// As "affine, 4 bits, groups of 64".
[[nodiscard]] std::string shown(const QuantParams& params);

/// The values along the last axis of a weight, where the configuration fixes them.
/// `canonical` is the weight's name, as "layers.0.ffn.down.weight".
[[nodiscard]] std::optional<std::int64_t> expected_inner(std::string_view canonical,
                                                         const ModelConfig& config);

/// Parameters out of the shapes alone, when the length of the last axis is known: mlx-lm's rule.
/// Nothing when the shapes do not fit such a length.
[[nodiscard]] std::optional<QuantParams> params_of_shapes(std::int64_t inner, std::uint64_t words,
                                                          std::uint64_t groups, Dtype scales);

}  // namespace safetensors::weights

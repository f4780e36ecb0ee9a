// Effective types: the number and name of a tensor's type, in the same numbering for all formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "safetensors/dtype.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

struct EffectiveType {
  std::uint32_t code;
  std::string_view name;
};

/// Returns the type of a plain tensor in safetensors.
[[nodiscard]] EffectiveType effective_type(Dtype dtype) noexcept;
/// Returns the type of a pack.
/// Requires: is_known(quant).
[[nodiscard]] EffectiveType effective_type(const QuantParams& quant) noexcept;

}  // namespace safetensors::weights

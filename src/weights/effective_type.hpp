// Effective types: one number and one name for what a tensor is, whatever format it came in.
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

/// Of a raw tensor in safetensors.
[[nodiscard]] EffectiveType effective_type(Dtype dtype) noexcept;
/// Of a pack.
[[nodiscard]] EffectiveType effective_type(const QuantParams& quant) noexcept;

}  // namespace safetensors::weights

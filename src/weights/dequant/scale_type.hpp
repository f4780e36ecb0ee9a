// Sizes and kernels of the types of scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/dequant/dequant.hpp"
#include "weights/dequant/ggml_types.hpp"

namespace safetensors::weights {

[[nodiscard]] constexpr std::size_t size_of(ScaleType type) noexcept {
  switch (type) {
    case ScaleType::u8:
      return 1;
    case ScaleType::f16:
    case ScaleType::bf16:
      return 2;
    case ScaleType::f32:
      break;
  }
  return 4;
}

/// Returns the GGUF type whose kernel reads scales of a type other than u8.
[[nodiscard]] constexpr std::uint32_t plain_type(ScaleType type) noexcept {
  switch (type) {
    case ScaleType::f16:
      return ggml::kF16;
    case ScaleType::bf16:
      return ggml::kBF16;
    case ScaleType::f32:
    case ScaleType::u8:
      break;
  }
  return ggml::kF32;
}

}  // namespace safetensors::weights

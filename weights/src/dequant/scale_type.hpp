// The types of scales: which dtypes they are, their sizes and kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {

/// Returns whether scales can be floats of this type: F16, BF16 or F32.
[[nodiscard]] constexpr bool is_scale_type(Dtype dtype) noexcept {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32;
}

/// Returns the type of scales that are stored as `dtype`. Requires: is_scale_type(), or U8.
[[nodiscard]] constexpr ScaleType scale_type_of(Dtype dtype) noexcept {
  if (dtype == Dtype::kF32) return ScaleType::f32;
  if (dtype == Dtype::kBF16) return ScaleType::bf16;
  return dtype == Dtype::kU8 ? ScaleType::u8 : ScaleType::f16;
}

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

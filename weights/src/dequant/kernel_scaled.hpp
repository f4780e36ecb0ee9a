// Codes of eight bits that share one scale, and factors of values.
#pragma once

#include "dequant/kernel_pack.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

inline void e4m3(const U8* SAFETENSORS_RESTRICT codes, std::size_t count, float scale,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  std::size_t i = 0;
#if defined(__AVX2__)
  for (; i + 16 <= count; i += 16) store(e4m3_floats(codes + i) * scale, y + i);
#endif
  for (; i < count; ++i) y[i] = e4m3_to_f32(codes[i]) * scale;
}

inline void multiply(const float* SAFETENSORS_RESTRICT factors, std::size_t count,
                     float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) y[i] *= factors[i];
}

inline void bytes_by_table(const U8* SAFETENSORS_RESTRICT codes, std::size_t count,
                           const float* SAFETENSORS_RESTRICT table, float scale,
                           float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) y[i] = table[codes[i]] * scale;
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

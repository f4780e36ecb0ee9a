// Undoes rotations by Hadamard matrices, see rotated.hpp.
#pragma once

#include "weights/dequant/kernel_base.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Multiplies four values by the matrix h, which is symmetric.
struct Rotated4 {
  std::int32_t a, b, c, d;
};
SAFETENSORS_INLINE Rotated4 rotated4(std::int32_t a, std::int32_t b, std::int32_t c,
                                     std::int32_t d) noexcept {
  const std::int32_t sum = a + b;
  const std::int32_t difference = a - b;
  const std::int32_t other_sum = c + d;
  const std::int32_t other_difference = c - d;
  return {sum + other_difference, sum - other_difference, difference + other_sum,
          other_sum - difference};
}

/// One factor of the rotation: columns that are `stride` apart. Is inlined, so that compilers know
/// the stride where it is a constant.
SAFETENSORS_INLINE void rotate_step(std::int32_t* values, std::size_t count,
                                    std::size_t stride) noexcept {
  for (std::size_t block = 0; block < count; block += 4 * stride) {
    std::int32_t* SAFETENSORS_RESTRICT const a = values + block;
    std::int32_t* SAFETENSORS_RESTRICT const b = a + stride;
    std::int32_t* SAFETENSORS_RESTRICT const c = b + stride;
    std::int32_t* SAFETENSORS_RESTRICT const d = c + stride;
    for (std::size_t i = 0; i < stride; ++i) {
      const Rotated4 to = rotated4(a[i], b[i], c[i], d[i]);
      a[i] = to.a;
      b[i] = to.b;
      c[i] = to.c;
      d[i] = to.d;
    }
  }
}

inline void rotate(std::int32_t* SAFETENSORS_RESTRICT values, std::size_t count,
                   std::size_t rotation, float scale, float inverse_root,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; i += 4) {
    const Rotated4 to = rotated4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    values[i] = to.a;
    values[i + 1] = to.b;
    values[i + 2] = to.c;
    values[i + 3] = to.d;
  }
  if (rotation > 4) rotate_step(values, count, 4);
  for (std::size_t stride = 16; stride < rotation; stride *= 4) rotate_step(values, count, stride);
  for (std::size_t i = 0; i < count; ++i) {
    y[i] = static_cast<float>(values[i]) * scale * inverse_root;
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

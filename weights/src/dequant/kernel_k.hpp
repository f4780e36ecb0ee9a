// GGUF's super-blocks of 256 values: K-quants and ternary types. ggml_blocks.hpp has the layouts
// and formulas.
#pragma once

#include "dequant/ggml_blocks.hpp"
#include "dequant/kernel_lanes.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

SAFETENSORS_INLINE void q2_k(const ggml::Q2_K& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const float min = load_f16(x.min);
  const U8* group = x.groups;
  for (const auto& plane_bytes : x.codes) {
    const Bytes halves[2] = {load_bytes(plane_bytes), load_bytes(plane_bytes + 16)};
    for (Index shift = 0; shift < 8; shift += 2) {
      for (const Bytes& half : halves) {
        const float group_scale = scale * to_float(*group & 15);
        const float group_min = min * to_float(*group >> 4);
        store(unsigned_floats(down(half, shift) & all(3)) * group_scale + -group_min, y);
        ++group;
        y += 16;
      }
    }
  }
}

SAFETENSORS_INLINE void q3_k(const ggml::Q3_K& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const Bytes high[2] = {load_bytes(x.high_bits), load_bytes(x.high_bits + 16)};
  for (Index part = 0; part < 2; ++part) {  // of 128 values: 8 groups
    const Bytes low[2] = {load_bytes(x.codes[part]), load_bytes(x.codes[part] + 16)};
    for (Index k = 0; k < 4; ++k) {
      for (Index half = 0; half < 2; ++half, y += 16) {
        const Index group = 2 * k + half;  // of the part
        const int low4 = (x.group_scales[group] >> (4 * part)) & 15;
        const int high2 = (x.group_scales[8 + group % 4] >> (4 * part + group / 4 * 2)) & 3;
        const float group_scale = scale * to_float((low4 | (high2 << 4)) - 32);
        const Bytes top = down(high[half], 4 * part + k) & all(1);
        const Bytes q = (down(low[half], 2 * k) & all(3)) | up(top, 2);
        store(signed_floats(q - all(4)) * group_scale, y);
      }
    }
  }
}

/// Scale and minimum of a group, multiplied by those of the block.
struct ScaleMin {
  float scale;
  float min;
};

/// Unpacks group j of the twelve bytes that ggml::Q4_K draws.
SAFETENSORS_INLINE ScaleMin scale_min(const U8* groups, Index j, float scale, float min) noexcept {
  if (j < 4) return {scale * to_float(groups[j] & 63), min * to_float(groups[j + 4] & 63)};
  return {scale * to_float((groups[j + 4] & 15) | ((groups[j - 4] >> 6) << 4)),
          min * to_float((groups[j + 4] >> 4) | ((groups[j] >> 6) << 4))};
}

SAFETENSORS_INLINE void q4_k(const ggml::Q4_K& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const float min = load_f16(x.min);
  for (Index j = 0; j < 8; j += 2, y += 64) {
    const ScaleMin low = scale_min(x.groups, j, scale, min);
    const ScaleMin high = scale_min(x.groups, j + 1, scale, min);
    for (Index half = 0; half < 32; half += 16) {
      const BytePair q = nibbles(load_bytes(x.codes[j / 2] + half));
      store(unsigned_floats(q.first) * low.scale + -low.min, y + half);
      store(unsigned_floats(q.second) * high.scale + -high.min, y + half + 32);
    }
  }
}

SAFETENSORS_INLINE void q5_k(const ggml::Q5_K& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const float min = load_f16(x.min);
  for (Index j = 0; j < 8; j += 2, y += 64) {
    const ScaleMin low = scale_min(x.groups, j, scale, min);
    const ScaleMin high = scale_min(x.groups, j + 1, scale, min);
    for (Index half = 0; half < 32; half += 16) {
      const Bytes fifth = load_bytes(x.fifth_bits + half);
      const BytePair q = nibbles(load_bytes(x.codes[j / 2] + half));
      const Bytes first = q.first | up(down(fifth, j) & all(1), 4);
      const Bytes second = q.second | up(down(fifth, j + 1) & all(1), 4);
      store(unsigned_floats(first) * low.scale + -low.min, y + half);
      store(unsigned_floats(second) * high.scale + -high.min, y + half + 32);
    }
  }
}

SAFETENSORS_INLINE void q6_k(const ggml::Q6_K& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index part = 0; part < 2; ++part, y += 128) {
    for (Index half = 0; half < 2; ++half) {
      const BytePair a = nibbles(load_bytes(x.low[part] + 16 * half));
      const BytePair b = nibbles(load_bytes(x.low[part] + 16 * half + 32));
      const Bytes high = load_bytes(x.high[part] + 16 * half);
      const Bytes low[4] = {a.first, b.first, a.second, b.second};  // in the order of values
      for (Index k = 0; k < 4; ++k) {
        const Bytes q = low[k] | up(down(high, 2 * k) & all(3), 4);
        const auto group_scale = static_cast<I8>(x.group_scales[8 * part + half + 2 * k]);
        store(signed_floats(q - all(32)) * (scale * to_float(group_scale)), y + 16 * half + 32 * k);
      }
    }
  }
}

/// Writes `digits` digits of each of `count` bytes, and returns the end of what it wrote. See
/// ggml::TQ1_0: multiplied by 3^n modulo 256, a byte has digit n on top.
template <int count, int digits>
SAFETENSORS_INLINE float* ternary(const U8* bytes, float scale,
                                  float* SAFETENSORS_RESTRICT y) noexcept {
  int power = 1;  // 3^n
  for (Index n = 0; n < digits; ++n, power *= 3, y += count) {
    for (Index j = 0; j < count; ++j) {
      const int fraction = (bytes[j] * power) & 255;
      y[j] = scale * to_float(((fraction * 3) >> 8) - 1);
    }
  }
  return y;
}

SAFETENSORS_INLINE void tq1_0(const ggml::TQ1_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  y = ternary<32, 5>(x.first, scale, y);
  y = ternary<16, 5>(x.second, scale, y);
  ternary<4, 4>(x.last, scale, y);
}

SAFETENSORS_INLINE void tq2_0(const ggml::TQ2_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (const auto& plane_bytes : x.codes) {
    for (Index shift = 0; shift < 8; shift += 2, y += 32) {
      for (Index i = 0; i < 32; ++i) y[i] = scale * to_float(((plane_bytes[i] >> shift) & 3) - 1);
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

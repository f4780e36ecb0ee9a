// GGUF's types of super-blocks of 256 values: K-quants and ternary ones.
#pragma once

#include "weights/dequant/kernel_base.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

inline void q2_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 84) {
    const float d = load_f16(x + 80);
    const float m = load_f16(x + 82);
    const U8* sc = x;
    for (const U8* q = x + 16; q != x + 80; q += 32) {
      for (int shift = 0; shift < 8; shift += 2) {
        for (int half = 0; half < 32; half += 16, ++sc, y += 16) {
          const float dl = d * to_float(*sc & 15);
          const float ml = m * to_float(*sc >> 4);
          for (int l = 0; l < 16; ++l) y[l] = dl * to_float((q[half + l] >> shift) & 3) - ml;
        }
      }
    }
  }
}

inline void q3_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 110) {
    const float d = load_f16(x + 108);
    const U8* packed = x + 96;
    int block = 0;
    for (const U8* q = x + 32; q != x + 96; q += 32) {
      for (int shift = 0; shift < 8; shift += 2) {
        // The bit of `high` is inverted: where it is clear, 4 is taken away.
        const int bit = block / 2;
        for (int half = 0; half < 32; half += 16, ++block, y += 16) {
          const int low4 = (packed[block % 8] >> (block / 8 * 4)) & 15;
          const int high2 = (packed[8 + block % 4] >> (block / 4 * 2)) & 3;
          const float dl = d * to_float((low4 | (high2 << 4)) - 32);
          const U8* high = x + half;
          for (int l = 0; l < 16; ++l) {
            const int q3 = ((q[half + l] >> shift) & 3) | (((high[l] >> bit) & 1) << 2);
            y[l] = dl * to_float(q3 - 4);
          }
        }
      }
    }
  }
}

/// Scale and minimum of one of the 8 parts of a Q4_K or Q5_K block, 6 bits each in 12 bytes.
struct ScaleMin {
  float scale;
  float min;
};

SAFETENSORS_INLINE ScaleMin scale_min(const U8* s, int j, float d, float m) noexcept {
  if (j < 4) return {d * to_float(s[j] & 63), m * to_float(s[j + 4] & 63)};
  return {d * to_float((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4)),
          m * to_float((s[j + 4] >> 4) | ((s[j] >> 6) << 4))};
}

inline void q4_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 144) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    const U8* q = x + 16;
    for (int j = 0; j < 8; j += 2, q += 32, y += 64) {
      const ScaleMin low = scale_min(x + 4, j, d, m);
      const ScaleMin high = scale_min(x + 4, j + 1, d, m);
      for (int l = 0; l < 32; ++l) y[l] = low.scale * to_float(q[l] & 15) - low.min;
      for (int l = 0; l < 32; ++l) y[l + 32] = high.scale * to_float(q[l] >> 4) - high.min;
    }
  }
}

inline void q5_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 176) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    const U8* fifth = x + 16;
    const U8* q = x + 48;
    for (int j = 0; j < 8; j += 2, q += 32, y += 64) {
      const ScaleMin low = scale_min(x + 4, j, d, m);
      const ScaleMin high = scale_min(x + 4, j + 1, d, m);
      for (int l = 0; l < 32; ++l) {
        const int q5 = (q[l] & 15) | (((fifth[l] >> j) & 1) << 4);
        y[l] = low.scale * to_float(q5) - low.min;
      }
      for (int l = 0; l < 32; ++l) {
        const int q5 = (q[l] >> 4) | (((fifth[l] >> (j + 1)) & 1) << 4);
        y[l + 32] = high.scale * to_float(q5) - high.min;
      }
    }
  }
}

inline void q6_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 210) {
    const float d = load_f16(x + 208);
    for (int part = 0; part < 2; ++part, y += 128) {
      const U8* low = x + 64 * part;
      const U8* high = x + 128 + 32 * part;
      const U8* sc = x + 192 + 8 * part;
      for (int half = 0; half < 2; ++half) {
        const float d0 = d * to_float(static_cast<I8>(sc[half]));
        const float d1 = d * to_float(static_cast<I8>(sc[half + 2]));
        const float d2 = d * to_float(static_cast<I8>(sc[half + 4]));
        const float d3 = d * to_float(static_cast<I8>(sc[half + 6]));
        const U8* a = low + 16 * half;
        const U8* b = a + 32;
        const U8* h = high + 16 * half;
        float* to = y + 16 * half;
        for (int l = 0; l < 16; ++l) {
          to[l] = d0 * to_float(((a[l] & 15) | ((h[l] & 3) << 4)) - 32);
          to[l + 32] = d1 * to_float(((b[l] & 15) | (((h[l] >> 2) & 3) << 4)) - 32);
          to[l + 64] = d2 * to_float(((a[l] >> 4) | (((h[l] >> 4) & 3) << 4)) - 32);
          to[l + 96] = d3 * to_float(((b[l] >> 4) | ((h[l] >> 6) << 4)) - 32);
        }
      }
    }
  }
}

/// Five digits of base 3 in each byte, as a fraction of 256: times 3^n, the next digit is on top.
template <int count, int digits>
SAFETENSORS_INLINE float* ternary(const U8* q, float d, float* SAFETENSORS_RESTRICT y) noexcept {
  int power = 1;
  for (int n = 0; n < digits; ++n, power *= 3, y += count) {
    for (int j = 0; j < count; ++j) {
      const int rest = (q[j] * power) & 255;
      y[j] = d * to_float(((rest * 3) >> 8) - 1);
    }
  }
  return y;
}

inline void tq1_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 54) {
    const float d = load_f16(x + 52);
    y = ternary<32, 5>(x, d, y);
    y = ternary<16, 5>(x + 32, d, y);
    y = ternary<4, 4>(x + 48, d, y);
  }
}

inline void tq2_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 66) {
    const float d = load_f16(x + 64);
    for (int half = 0; half < 64; half += 32) {
      for (int shift = 0; shift < 8; shift += 2, y += 32) {
        for (int l = 0; l < 32; ++l) y[l] = d * to_float(((x[half + l] >> shift) & 3) - 1);
      }
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

// GGUF's types of super-blocks of 256 values: K-quants and ternary ones.
#pragma once

#include "weights/dequant/kernel_lanes.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

inline void q2_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 84) {
    const float d = load_f16(x + 80);
    const float m = load_f16(x + 82);
    const U8* sc = x;
    for (const U8* from = x + 16; from != x + 80; from += 32) {
      const Bytes halves[2] = {load_bytes(from), load_bytes(from + 16)};
      for (Index shift = 0; shift < 8; shift += 2) {
        for (const Bytes& half : halves) {
          const float dl = d * to_float(*sc & 15);
          const float ml = m * to_float(*sc >> 4);
          store(unsigned_floats(down(half, shift) & all(3)) * dl + -ml, y);
          ++sc;
          y += 16;
        }
      }
    }
  }
}

inline void q3_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 110, y += 256) {
    const float d = load_f16(x + 108);
    const Bytes high[2] = {load_bytes(x), load_bytes(x + 16)};
    const U8* packed = x + 96;
    for (Index part = 0; part < 8; ++part) {
      for (Index half = 0; half < 2; ++half) {
        const Index block = 2 * part + half;
        const int low4 = (packed[block % 8] >> (block / 8 * 4)) & 15;
        const int high2 = (packed[8 + block % 4] >> (block / 4 * 2)) & 3;
        const float dl = d * to_float((low4 | (high2 << 4)) - 32);
        const Bytes low = load_bytes(x + 32 + part / 4 * 32 + 16 * half);
        // The third bit is inverted: where it is clear, 4 is taken away.
        const Bytes q = (down(low, part % 4 * 2) & all(3)) | up(down(high[half], part) & all(1), 2);
        store(signed_floats(q - all(4)) * dl, y + 16 * block);
      }
    }
  }
}

/// Scale and minimum of one of the 8 parts of a Q4_K or Q5_K block, 6 bits each in 12 bytes.
struct ScaleMin {
  float scale;
  float min;
};

SAFETENSORS_INLINE ScaleMin scale_min(const U8* s, Index j, float d, float m) noexcept {
  if (j < 4) return {d * to_float(s[j] & 63), m * to_float(s[j + 4] & 63)};
  return {d * to_float((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4)),
          m * to_float((s[j + 4] >> 4) | ((s[j] >> 6) << 4))};
}

inline void q4_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 144) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    for (Index j = 0; j < 8; j += 2, y += 64) {
      const ScaleMin low = scale_min(x + 4, j, d, m);
      const ScaleMin high = scale_min(x + 4, j + 1, d, m);
      for (Index half = 0; half < 32; half += 16) {
        const BytePair q = nibbles(load_bytes(x + 16 + 16 * j + half));
        store(unsigned_floats(q.first) * low.scale + -low.min, y + half);
        store(unsigned_floats(q.second) * high.scale + -high.min, y + half + 32);
      }
    }
  }
}

inline void q5_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 176) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    for (Index j = 0; j < 8; j += 2, y += 64) {
      const ScaleMin low = scale_min(x + 4, j, d, m);
      const ScaleMin high = scale_min(x + 4, j + 1, d, m);
      for (Index half = 0; half < 32; half += 16) {
        const Bytes fifth = load_bytes(x + 16 + half);
        const BytePair q = nibbles(load_bytes(x + 48 + 16 * j + half));
        const Bytes first = q.first | up(down(fifth, j) & all(1), 4);
        const Bytes second = q.second | up(down(fifth, j + 1) & all(1), 4);
        store(unsigned_floats(first) * low.scale + -low.min, y + half);
        store(unsigned_floats(second) * high.scale + -high.min, y + half + 32);
      }
    }
  }
}

inline void q6_k(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 210) {
    const float d = load_f16(x + 208);
    for (Index part = 0; part < 2; ++part, y += 128) {
      for (Index half = 0; half < 2; ++half) {
        const BytePair a = nibbles(load_bytes(x + 64 * part + 16 * half));
        const BytePair b = nibbles(load_bytes(x + 64 * part + 16 * half + 32));
        const Bytes high = load_bytes(x + 128 + 32 * part + 16 * half);
        const Bytes low[4] = {a.first, b.first, a.second, b.second};
        for (Index k = 0; k < 4; ++k) {
          const Bytes q = low[k] | up(down(high, 2 * k) & all(3), 4);
          const float dl = d * to_float(static_cast<I8>(x[192 + 8 * part + half + 2 * k]));
          store(signed_floats(q - all(32)) * dl, y + 16 * half + 32 * k);
        }
      }
    }
  }
}

/// Five digits of base 3 in each byte, as a fraction of 256: times 3^n, the next digit is on top.
template <int count, int digits>
SAFETENSORS_INLINE float* ternary(const U8* q, float d, float* SAFETENSORS_RESTRICT y) noexcept {
  int power = 1;
  for (Index n = 0; n < digits; ++n, power *= 3, y += count) {
    for (Index j = 0; j < count; ++j) {
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
    for (Index half = 0; half < 64; half += 32) {
      for (Index shift = 0; shift < 8; shift += 2, y += 32) {
        for (Index l = 0; l < 32; ++l) y[l] = d * to_float(((x[half + l] >> shift) & 3) - 1);
      }
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

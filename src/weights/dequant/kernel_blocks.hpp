// GGUF's types of short blocks: one scale, no super-blocks.
#pragma once

#include "weights/dequant/kernel_base.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Values of 16 bytes of codes: of the 16 low halves, then of the 16 high halves.
SAFETENSORS_INLINE void look_up(const U8* codes, const NibbleTable& table, I8* to) noexcept {
#if defined(__AVX2__)
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(table.values));
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(codes));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to),
                   _mm_shuffle_epi8(values, _mm_and_si128(both, mask)));
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to + 16), _mm_shuffle_epi8(values, high));
#else
  const I8* values = table.values;
  for (int j = 0; j < 16; ++j) to[j] = values[codes[j] & 15];
  for (int j = 0; j < 16; ++j) to[j + 16] = values[codes[j] >> 4];
#endif
}

inline void q4_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 32) {
    const float d = load_f16(x);
    const U8* q = x + 2;
    for (int j = 0; j < 16; ++j) y[j] = d * to_float((q[j] & 15) - 8);
    for (int j = 0; j < 16; ++j) y[j + 16] = d * to_float((q[j] >> 4) - 8);
  }
}

inline void q4_1(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 20, y += 32) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    const U8* q = x + 4;
    for (int j = 0; j < 16; ++j) y[j] = d * to_float(q[j] & 15) + m;
    for (int j = 0; j < 16; ++j) y[j + 16] = d * to_float(q[j] >> 4) + m;
  }
}

/// The 32 values of five bits: low halves, high halves, and their fifth bits.
SAFETENSORS_INLINE void five_bits(const U8* nibbles, U32 fifth, I8* to) noexcept {
  U8 high[32];
  for (int k = 0; k < 4; ++k) store_bytes(high + 8 * k, spread_bits(fifth >> (8 * k)) >> 3);
  for (int j = 0; j < 16; ++j) to[j] = static_cast<I8>((nibbles[j] & 15) | high[j]);
  for (int j = 0; j < 16; ++j) to[j + 16] = static_cast<I8>((nibbles[j] >> 4) | high[j + 16]);
}

inline void q5_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 22, y += 32) {
    const float d = load_f16(x);
    I8 q[32];
    five_bits(x + 6, load<U32>(x + 2), q);
    for (int j = 0; j < 32; ++j) y[j] = d * to_float(q[j] - 16);
  }
}

inline void q5_1(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 24, y += 32) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    I8 q[32];
    five_bits(x + 8, load<U32>(x + 4), q);
    for (int j = 0; j < 32; ++j) y[j] = d * to_float(q[j]) + m;
  }
}

inline void q8_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 34, y += 32) {
    const float d = load_f16(x);
    const U8* q = x + 2;
    for (int j = 0; j < 32; ++j) y[j] = d * to_float(static_cast<I8>(q[j]));
  }
}

inline void iq4_nl(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 32) {
    I8 q[32];
    look_up(x + 2, kNonLinear4, q);
    scale<32>(q, load_f16(x), y);
  }
}

inline void mxfp4(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 17, y += 32) {
    const float d = e8m0_to_f32(x[0]);
    I8 q[32];
    look_up(x + 1, kTwiceE2M1, q);
    for (int j = 0; j < 32; ++j) y[j] = to_float(q[j]) * 0.5F * d;
  }
}

/// Four groups of 16 values, in 8 bytes each.
inline void nvfp4(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 36) {
    for (int pair = 0; pair < 2; ++pair) {
      I8 q[32];
      look_up(x + 4 + 16 * pair, kTwiceE2M1, q);
      for (int half = 0; half < 2; ++half, y += 16) {
        const U32 code = x[2 * pair + half] & 0x7FU;
        // A NaN of E4M3 counts as nothing here, if its highest bit is clear.
        const bool none = x[2 * pair + half] == 0x7F;
        const float d = none ? 0.0F : code == 0x7F ? 480.0F : kE4M3Values.values[code];
        for (int j = 0; j < 8; ++j) y[j] = to_float(q[8 * half + j]) * 0.5F * d;
        for (int j = 0; j < 8; ++j) y[j + 8] = to_float(q[16 + 8 * half + j]) * 0.5F * d;
      }
    }
  }
}

inline void q1_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 128) {
    I8 q[128];
    // 1 or -1
    for (int k = 0; k < 16; ++k) {
      const U64 set = spread_bits(x[2 + k]) >> 7;
      store_bytes(q + 8 * k, ~(set * 0xFE));
    }
    scale<128>(q, load_f16(x), y);
  }
}

inline void q2_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 64) {
    const float d = load_f16(x);
    for (int j = 0; j < 64; ++j) y[j] = d * to_float(((x[2 + j / 4] >> (2 * (j % 4))) & 3) - 1);
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

// GGUF's types whose codes choose whole rows of a grid.
#pragma once

#include "weights/dequant/iq_grids.hpp"
#include "weights/dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Eight positive bytes, negated where `negative` has the bit of their place.
SAFETENSORS_INLINE void put_signed(I8* to, U64 bytes, U32 negative) noexcept {
  const U64 ones = spread_bits(negative) >> 7;
  store_bytes(to, (bytes ^ (ones * 0xFF)) + ones);
}

/// Seven signs are stored; the eighth makes the number of negative ones even.
SAFETENSORS_INLINE U32 eight_signs(U32 seven) noexcept {
  seven &= 127;
  U32 parity = seven ^ (seven >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | ((parity & 1) << 7);
}

/// Eight values of two rows of four.
template <std::size_t rows>
SAFETENSORS_INLINE U64 two_rows(const Grid<rows, 4>& grid, U32 first, U32 second) noexcept {
  return load<U32>(grid.rows[first]) | static_cast<U64>(load<U32>(grid.rows[second])) << 32;
}

inline void iq2_xxs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                    float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 66, y += 256) {
    const float d = load_f16(x);
    I8 q[256];
    float db[8];
    for (int part = 0; part < 8; ++part) {
      const U8* from = x + 2 + 8 * part;
      const U32 signs = load<U32>(from + 4);
      db[part] = d * (0.5F + static_cast<float>(signs >> 28)) * 0.25F;
      for (int k = 0; k < 4; ++k) {
        put_signed(q + 32 * part + 8 * k, load<U64>(kGridIq2Xxs.rows[from[k]]),
                   eight_signs(signs >> (7 * k)));
      }
    }
    for (int part = 0; part < 8; ++part) scale<32>(q + 32 * part, db[part], y + 32 * part);
  }
}

inline void iq2_xs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 74, y += 256) {
    const float d = load_f16(x);
    const U8* sc = x + 66;
    I8 q[256];
    for (int k = 0; k < 32; ++k) {
      const U32 code = load<U16>(x + 2 + 2 * k);
      put_signed(q + 8 * k, load<U64>(kGridIq2Xs.rows[code & 511]), eight_signs(code >> 9));
    }
    for (int k = 0; k < 16; ++k) {
      const int nibble = (sc[k / 2] >> (k % 2 * 4)) & 15;
      scale<16>(q + 16 * k, d * (0.5F + to_float(nibble)) * 0.25F, y + 16 * k);
    }
  }
}

inline void iq2_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 82, y += 256) {
    const float d = load_f16(x);
    const U8* signs = x + 34;
    const U8* high = x + 66;
    const U8* sc = x + 74;
    I8 q[256];
    for (int k = 0; k < 32; ++k) {
      const U32 code = x[2 + k] | ((static_cast<U32>(high[k / 4]) >> (k % 4 * 2)) & 3U) << 8;
      put_signed(q + 8 * k, load<U64>(kGridIq2S.rows[code]), signs[k]);
    }
    for (int k = 0; k < 16; ++k) {
      const int nibble = (sc[k / 2] >> (k % 2 * 4)) & 15;
      scale<16>(q + 16 * k, d * (0.5F + to_float(nibble)) * 0.25F, y + 16 * k);
    }
  }
}

inline void iq3_xxs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                    float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 98, y += 256) {
    const float d = load_f16(x);
    I8 q[256];
    float db[8];
    for (int part = 0; part < 8; ++part) {
      const U8* from = x + 2 + 8 * part;
      const U32 signs = load<U32>(x + 66 + 4 * part);
      db[part] = d * (0.5F + static_cast<float>(signs >> 28)) * 0.5F;
      for (int k = 0; k < 4; ++k) {
        put_signed(q + 32 * part + 8 * k, two_rows(kGridIq3Xxs, from[2 * k], from[2 * k + 1]),
                   eight_signs(signs >> (7 * k)));
      }
    }
    for (int part = 0; part < 8; ++part) scale<32>(q + 32 * part, db[part], y + 32 * part);
  }
}

inline void iq3_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 110, y += 256) {
    const float d = load_f16(x);
    const U8* codes = x + 2;
    const U8* high = x + 66;
    const U8* signs = x + 74;
    const U8* sc = x + 106;
    I8 q[256];
    for (int k = 0; k < 32; ++k) {
      const U32 ninth = static_cast<U32>(high[k / 4]) >> (k % 4 * 2);
      const U32 first = codes[2 * k] | (ninth & 1U) << 8;
      const U32 second = codes[2 * k + 1] | (ninth & 2U) << 7;
      put_signed(q + 8 * k, two_rows(kGridIq3S, first, second), signs[k]);
    }
    for (int part = 0; part < 8; ++part) {
      const int nibble = (sc[part / 2] >> (part % 2 * 4)) & 15;
      scale<32>(q + 32 * part, d * to_float(1 + 2 * nibble), y + 32 * part);
    }
  }
}

constexpr float kIq1Delta = 0.125F;

inline void iq1_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 50, y += 256) {
    const float d = load_f16(x);
    I8 q[256];
    for (int k = 0; k < 32; ++k) {
      const U32 high = load<U16>(x + 34 + k / 4 * 2);
      const U32 code = x[2 + k] | ((high >> (k % 4 * 3)) & 7U) << 8;
      store_bytes(q + 8 * k, load<U64>(kGridIq1.rows[code]));
    }
    for (int part = 0; part < 8; ++part) {
      const U32 high = load<U16>(x + 34 + 2 * part);
      const float dl = d * static_cast<float>(2 * ((high >> 12) & 7U) + 1);
      const float delta = (high & 0x8000U) != 0 ? -kIq1Delta : kIq1Delta;
      const I8* from = q + 32 * part;
      float* to = y + 32 * part;
      for (int l = 0; l < 32; ++l) to[l] = dl * (to_float(from[l]) + delta);
    }
  }
}

inline void iq1_m(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 56, y += 256) {
    const U8* high = x + 32;
    const U8* sc = x + 48;
    // The scale's four nibbles are the top ones of the four words of small scales.
    const U8 scale_bytes[2] = {static_cast<U8>((sc[1] >> 4) | (sc[3] & 0xF0)),
                               static_cast<U8>((sc[5] >> 4) | (sc[7] & 0xF0))};
    const float d = load_f16(scale_bytes);
    I8 q[256];
    for (int k = 0; k < 32; ++k) {
      const U32 nibble = static_cast<U32>(high[k / 2]) >> (k % 2 * 4);
      store_bytes(q + 8 * k, load<U64>(kGridIq1.rows[x[k] | (nibble & 7U) << 8]));
    }
    for (int k = 0; k < 32; ++k) {
      const U32 small = (static_cast<U32>(load<U16>(sc + k / 8 * 2)) >> (k / 2 % 4 * 3)) & 7U;
      const float dl = d * static_cast<float>(2 * small + 1);
      const bool below = ((high[k / 2] >> (k % 2 * 4)) & 8) != 0;
      const float delta = below ? -kIq1Delta : kIq1Delta;
      for (int l = 0; l < 8; ++l) y[8 * k + l] = dl * (to_float(q[8 * k + l]) + delta);
    }
  }
}

inline void iq4_xs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 136) {
    const float d = load_f16(x);
    const U32 high = load<U16>(x + 2);
    for (int part = 0; part < 8; ++part, y += 32) {
      const int low4 = (x[4 + part / 2] >> (part % 2 * 4)) & 15;
      const int high2 = static_cast<int>((high >> (2 * part)) & 3U);
      I8 q[32];
      look_up(x + 8 + 16 * part, kNonLinear4, q);
      scale<32>(q, d * to_float((low4 | (high2 << 4)) - 32), y);
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

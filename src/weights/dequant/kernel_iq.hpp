// GGUF's types whose codes choose whole rows of a grid.
#pragma once

#include "weights/dequant/iq_grids.hpp"
#include "weights/dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Seven signs are stored; the eighth makes the number of negative ones even.
SAFETENSORS_INLINE U32 eight_signs(U32 seven) noexcept {
  seven &= 127;
  U32 parity = seven ^ (seven >> 4);
  parity = 0x6996U >> (parity & 15);  // of every number of four bits
  return seven | (parity & 1) << 7;
}

/// Eight values of two rows of four.
template <std::size_t rows>
SAFETENSORS_INLINE U64 two_rows(const Grid<rows, 4>& grid, U32 first, U32 second) noexcept {
  return load<U32>(grid.rows[first]) | static_cast<U64>(load<U32>(grid.rows[second])) << 32;
}

/// Sixteen values: two times eight bytes of a grid, with their signs.
SAFETENSORS_INLINE Values signed_rows(U64 first, U64 second, U32 signs) noexcept {
  return signed_floats(negated(join(first, second), mask_of(signs)));
}

inline void iq2_xxs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                    float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 66) {
    const float d = load_f16(x);
    for (const U8* from = x + 2; from != x + 66; from += 8) {
      const U32 signs = load<U32>(from + 4);
      const float db = d * (0.5F + to_float(static_cast<int>(signs >> 28))) * 0.25F;
      for (Index k = 0; k < 4; k += 2, y += 16) {
        const U32 both = eight_signs(signs >> (7 * k)) | eight_signs(signs >> (7 * k + 7)) << 8;
        store(signed_rows(load<U64>(kGridIq2Xxs.rows[from[k]]),
                          load<U64>(kGridIq2Xxs.rows[from[k + 1]]), both) *
                  db,
              y);
      }
    }
  }
}

/// Scale of 16 values of IQ2_XS and IQ2_S: four bits, the first in the low half of a byte.
SAFETENSORS_INLINE float iq2_scale(const U8* scales, Index k, float d) noexcept {
  return d * (0.5F + to_float((scales[k / 2] >> (k % 2 * 4)) & 15)) * 0.25F;
}

inline void iq2_xs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 74) {
    const float d = load_f16(x);
    for (Index k = 0; k < 16; ++k, y += 16) {
      const U32 first = load<U16>(x + 2 + 4 * k);
      const U32 second = load<U16>(x + 4 + 4 * k);
      store(signed_rows(load<U64>(kGridIq2Xs.rows[first & 511]),
                        load<U64>(kGridIq2Xs.rows[second & 511]),
                        eight_signs(first >> 9) | eight_signs(second >> 9) << 8) *
                iq2_scale(x + 66, k, d),
            y);
    }
  }
}

inline void iq2_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 82) {
    const float d = load_f16(x);
    for (Index k = 0; k < 16; ++k, y += 16) {
      const U32 high = static_cast<U32>(x[66 + k / 2]) >> (k % 2 * 4);
      const U32 first = x[2 + 2 * k] | (high & 3U) << 8;
      const U32 second = x[3 + 2 * k] | (high & 12U) << 6;
      store(signed_rows(load<U64>(kGridIq2S.rows[first]), load<U64>(kGridIq2S.rows[second]),
                        load<U16>(x + 34 + 2 * k)) *
                iq2_scale(x + 74, k, d),
            y);
    }
  }
}

inline void iq3_xxs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                    float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 98) {
    const float d = load_f16(x);
    for (Index part = 0; part < 8; ++part) {
      const U8* from = x + 2 + 8 * part;
      const U32 signs = load<U32>(x + 66 + 4 * part);
      const float db = d * (0.5F + to_float(static_cast<int>(signs >> 28))) * 0.5F;
      for (Index k = 0; k < 4; k += 2, y += 16, from += 4) {
        const U32 both = eight_signs(signs >> (7 * k)) | eight_signs(signs >> (7 * k + 7)) << 8;
        store(signed_rows(two_rows(kGridIq3Xxs, from[0], from[1]),
                          two_rows(kGridIq3Xxs, from[2], from[3]), both) *
                  db,
              y);
      }
    }
  }
}

inline void iq3_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 110) {
    const float d = load_f16(x);
    for (Index k = 0; k < 16; ++k, y += 16) {
      const U8* from = x + 2 + 4 * k;
      const U32 ninth = static_cast<U32>(x[66 + k / 2]) >> (k % 2 * 4);
      const int nibble = (x[106 + k / 4] >> (k / 2 % 2 * 4)) & 15;
      store(
          signed_rows(two_rows(kGridIq3S, from[0] | (ninth & 1U) << 8, from[1] | (ninth & 2U) << 7),
                      two_rows(kGridIq3S, from[2] | (ninth & 4U) << 6, from[3] | (ninth & 8U) << 5),
                      load<U16>(x + 74 + 2 * k)) *
              (d * to_float(1 + 2 * nibble)),
          y);
    }
  }
}

constexpr float kIq1Delta = 0.125F;
// Eight bytes of 1, and of -1.
constexpr U64 kPlus = 0x0101010101010101U;
constexpr U64 kMinus = 0xFFFFFFFFFFFFFFFFU;

inline void iq1_s(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 50) {
    const float d = load_f16(x);
    for (Index part = 0; part < 8; ++part, y += 32) {
      const U32 high = load<U16>(x + 34 + 2 * part);
      const float dl = d * to_float(static_cast<int>(2 * ((high >> 12) & 7U) + 1));
      const float delta = (high & 0x8000U) != 0 ? -kIq1Delta : kIq1Delta;
      const auto eight = [&](int k) SAFETENSORS_INLINE_LAMBDA {
        return load<U64>(kGridIq1.rows[x[2 + 4 * part + k] | ((high >> (3 * k)) & 7U) << 8]);
      };
      store((signed_floats(join(eight(0), eight(1))) + delta) * dl, y);
      store((signed_floats(join(eight(2), eight(3))) + delta) * dl, y + 16);
    }
  }
}

/// Each eight values have an offset of their own. In eighths it can be added to their bytes, and
/// an eighth of the scale is exact, for the scale is no smaller than 2^-24.
inline void iq1_m(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 56) {
    const U8* sc = x + 48;
    // The scale's four parts are the top ones of the four words of small scales.
    const U8 scale_bytes[2] = {static_cast<U8>((sc[1] >> 4) | (sc[3] & 0xF0)),
                               static_cast<U8>((sc[5] >> 4) | (sc[7] & 0xF0))};
    const float d = load_f16(scale_bytes);
    for (Index k = 0; k < 16; ++k, y += 16) {
      const U32 small = (static_cast<U32>(load<U16>(sc + k / 4 * 2)) >> (k % 4 * 3)) & 7U;
      const float dl = d * to_float(static_cast<int>(2 * small + 1));
      const U32 high = x[32 + k];
      const U64 first = load<U64>(kGridIq1.rows[x[2 * k] | (high & 7U) << 8]);
      const U64 second = load<U64>(kGridIq1.rows[x[2 * k + 1] | (high & 0x70U) << 4]);
      const Bytes offsets =
          join((high & 0x08U) != 0 ? kMinus : kPlus, (high & 0x80U) != 0 ? kMinus : kPlus);
      // Times 8: the bytes are 0, 1 and -1, so doubling keeps their signs.
      const Bytes twice = join(first, second) + join(first, second);
      const Bytes four = twice + twice;
      store(signed_floats(four + four + offsets) * (dl * kIq1Delta), y);
    }
  }
}

inline void iq4_xs(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 136) {
    const float d = load_f16(x);
    const U32 high = load<U16>(x + 2);
    for (Index part = 0; part < 8; ++part, y += 32) {
      const int low4 = (x[4 + part / 2] >> (part % 2 * 4)) & 15;
      const int high2 = static_cast<int>((high >> (2 * part)) & 3U);
      const float dl = d * to_float((low4 | (high2 << 4)) - 32);
      const BytePair q = nibbles(load_bytes(x + 8 + 16 * part));
      store(signed_floats(look_up(kNonLinear4, q.first)) * dl, y);
      store(signed_floats(look_up(kNonLinear4, q.second)) * dl, y + 16);
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

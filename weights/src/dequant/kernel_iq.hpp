// GGUF's types whose codes select rows of a grid. ggml_blocks.hpp has the layouts and formulas.
#pragma once

#include "dequant/iq_grids.hpp"
#include "dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Returns eight signs for the seven stored in the lowest bits: the eighth makes the number of
/// negative ones even.
SAFETENSORS_INLINE U32 eight_signs(U32 seven) noexcept {
  seven &= 127;
  U32 parity = seven ^ (seven >> 4);
  parity = 0x6996U >> (parity & 15);  // bit n of 0x6996 is the parity of n, for n below 16
  return seven | (parity & 1) << 7;
}

/// Eight values: two rows of four.
template <std::size_t rows>
SAFETENSORS_INLINE U64 two_rows(const Grid<rows, 4>& grid, U32 first, U32 second) noexcept {
  return load<U32>(grid.rows[first]) | static_cast<U64>(load<U32>(grid.rows[second])) << 32;
}

/// Sixteen values: two times eight bytes of a grid, negated where their bit of `signs` is set.
SAFETENSORS_INLINE Values signed_rows(U64 first, U64 second, U32 signs) noexcept {
  return signed_floats(negated(join(first, second), mask_of(signs)));
}

/// The sixteen signs of values 8 * k to 8 * k + 15 of a part of IQ2_XXS or IQ3_XXS.
SAFETENSORS_INLINE U32 sixteen_signs(U32 signs_and_scale, Index k) noexcept {
  return eight_signs(signs_and_scale >> (7 * k)) | eight_signs(signs_and_scale >> (7 * k + 7)) << 8;
}

SAFETENSORS_INLINE void iq2_xxs(const ggml::IQ2_XXS& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (const ggml::IQ2_XXS::Part& part : x.parts) {
    const U32 signs = load<U32>(part.signs_and_scale);
    const float part_scale = scale * (0.5F + to_float(static_cast<int>(signs >> 28))) * 0.25F;
    for (Index k = 0; k < 4; k += 2, y += 16) {
      store(signed_rows(load<U64>(kGridIq2Xxs.rows[part.rows[k]]),
                        load<U64>(kGridIq2Xxs.rows[part.rows[k + 1]]), sixteen_signs(signs, k)) *
                part_scale,
            y);
    }
  }
}

/// Scale of group k of IQ2_XS and IQ2_S: a nibble, the first group's in the low half of a byte.
SAFETENSORS_INLINE float iq2_scale(const U8* group_scales, Index k, float scale) noexcept {
  return scale * (0.5F + to_float((group_scales[k / 2] >> (k % 2 * 4)) & 15)) * 0.25F;
}

SAFETENSORS_INLINE void iq2_xs(const ggml::IQ2_XS& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index k = 0; k < 16; ++k, y += 16) {
    const U32 first = load<U16>(x.codes[k][0]);
    const U32 second = load<U16>(x.codes[k][1]);
    store(signed_rows(load<U64>(kGridIq2Xs.rows[first & 511]),
                      load<U64>(kGridIq2Xs.rows[second & 511]),
                      eight_signs(first >> 9) | eight_signs(second >> 9) << 8) *
              iq2_scale(x.group_scales, k, scale),
          y);
  }
}

SAFETENSORS_INLINE void iq2_s(const ggml::IQ2_S& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index k = 0; k < 16; ++k, y += 16) {
    const U32 high = static_cast<U32>(x.high_rows[k / 2]) >> (k % 2 * 4);
    const U32 first = x.rows[k][0] | (high & 3U) << 8;
    const U32 second = x.rows[k][1] | (high & 12U) << 6;
    store(signed_rows(load<U64>(kGridIq2S.rows[first]), load<U64>(kGridIq2S.rows[second]),
                      load<U16>(x.signs[k])) *
              iq2_scale(x.group_scales, k, scale),
          y);
  }
}

SAFETENSORS_INLINE void iq3_xxs(const ggml::IQ3_XXS& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index part = 0; part < 8; ++part) {
    const U8* rows = x.rows[part];
    const U32 signs = load<U32>(x.signs_and_scales[part]);
    const float part_scale = scale * (0.5F + to_float(static_cast<int>(signs >> 28))) * 0.5F;
    for (Index k = 0; k < 4; k += 2, y += 16, rows += 4) {
      store(signed_rows(two_rows(kGridIq3Xxs, rows[0], rows[1]),
                        two_rows(kGridIq3Xxs, rows[2], rows[3]), sixteen_signs(signs, k)) *
                part_scale,
            y);
    }
  }
}

SAFETENSORS_INLINE void iq3_s(const ggml::IQ3_S& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index k = 0; k < 16; ++k, y += 16) {
    const U8* rows = x.rows[k];
    const U32 ninth = static_cast<U32>(x.high_rows[k / 2]) >> (k % 2 * 4);
    const int nibble = (x.part_scales[k / 4] >> (k / 2 % 2 * 4)) & 15;
    store(signed_rows(two_rows(kGridIq3S, rows[0] | (ninth & 1U) << 8, rows[1] | (ninth & 2U) << 7),
                      two_rows(kGridIq3S, rows[2] | (ninth & 4U) << 6, rows[3] | (ninth & 8U) << 5),
                      load<U16>(x.signs[k])) *
              (scale * to_float(1 + 2 * nibble)),
          y);
  }
}

constexpr float kIq1Delta = 0.125F;
// Eight bytes of 1, and of -1.
constexpr U64 kPlus = 0x0101010101010101U;
constexpr U64 kMinus = 0xFFFFFFFFFFFFFFFFU;

SAFETENSORS_INLINE void iq1_s(const ggml::IQ1_S& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index part = 0; part < 8; ++part, y += 32) {
    const U32 high = load<U16>(x.high[part]);
    const float part_scale = scale * to_float(static_cast<int>(2 * ((high >> 12) & 7U) + 1));
    const float delta = (high & 0x8000U) != 0 ? -kIq1Delta : kIq1Delta;
    const auto eight = [&](int k) SAFETENSORS_INLINE_LAMBDA {
      return load<U64>(kGridIq1.rows[x.rows[part][k] | ((high >> (3 * k)) & 7U) << 8]);
    };
    store((signed_floats(join(eight(0), eight(1))) + delta) * part_scale, y);
    store((signed_floats(join(eight(2), eight(3))) + delta) * part_scale, y + 16);
  }
}

/// Works in eighths, so that the deltas can be added to bytes:
///   value = scale / 8 * (2 * group scale + 1) * (8 * grid value + (1 or -1)).
/// An eighth of the scale is exact, because no scale but 0 is smaller than 2^-24.
SAFETENSORS_INLINE void iq1_m(const ggml::IQ1_M& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const auto top = [&](Index word) SAFETENSORS_INLINE_LAMBDA { return x.scales[word][1]; };
  const U8 scale_bytes[2] = {static_cast<U8>((top(0) >> 4) | (top(1) & 0xF0)),
                             static_cast<U8>((top(2) >> 4) | (top(3) & 0xF0))};
  const float scale = load_f16(scale_bytes);
  for (Index k = 0; k < 16; ++k, y += 16) {
    const U32 three_bits = (static_cast<U32>(load<U16>(x.scales[k / 4])) >> (k % 4 * 3)) & 7U;
    const float group_scale = scale * to_float(static_cast<int>(2 * three_bits + 1));
    const U32 high = x.high[k];
    const U64 first = load<U64>(kGridIq1.rows[x.rows[k][0] | (high & 7U) << 8]);
    const U64 second = load<U64>(kGridIq1.rows[x.rows[k][1] | (high & 0x70U) << 4]);
    const Bytes deltas =
        join((high & 0x08U) != 0 ? kMinus : kPlus, (high & 0x80U) != 0 ? kMinus : kPlus);
    // Times 8: the bytes are 0, 1 and -1, so doubling keeps their signs.
    const Bytes twice = join(first, second) + join(first, second);
    const Bytes four = twice + twice;
    store(signed_floats(four + four + deltas) * (group_scale * kIq1Delta), y);
  }
}

SAFETENSORS_INLINE void iq4_xs(const ggml::IQ4_XS& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const U32 high = load<U16>(x.high_scales);
  for (Index part = 0; part < 8; ++part, y += 32) {
    const int low4 = (x.low_scales[part / 2] >> (part % 2 * 4)) & 15;
    const int high2 = static_cast<int>((high >> (2 * part)) & 3U);
    const float part_scale = scale * to_float((low4 | (high2 << 4)) - 32);
    const BytePair q = nibbles(load_bytes(x.codes[part]));
    store(signed_floats(look_up(kNonLinear4, q.first)) * part_scale, y);
    store(signed_floats(look_up(kNonLinear4, q.second)) * part_scale, y + 16);
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

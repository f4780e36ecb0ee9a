// Groups of values that share a scale: packs of MLX, as its documentation of quantize() describes
// them, and the schemes of compressed-tensors and modelopt.
//
//   affine         value = scale * code + bias
//   integers       value = (code - zero) * scale
//   mxfp4, nvfp4   value = scale * E2M1(code)
//   mxfp6          value = scale * E2M3(code)
//   mxfp8          value = scale * E4M3(code)
//
// The codes of a row follow each other without gaps, the first in the lowest bits of the first byte
// (files have 32-bit words, which are little-endian). So a code of 3, 5, 6 or 7 bits may lie
// across two bytes. With 3 bits:
//
//     byte          0                  1                  2
//     bits      0-2  3-5  6-7      0  1-3  4-6  7     0-1  2-4  5-7
//     code       0    1    2 ----- 2   3    4   5 ----- 5   6    7
//
// `bits` bytes hold eight codes, and 4 * `bits` bytes hold the 32 codes that one step decodes.
#pragma once

#include "dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Spreads eight codes of `bits` bits to one byte each, in three steps. With n = bits:
///
///     start   | 8 codes, 8n bits                                        | upper 32-bit half first
///     step 1  |     codes 4-7 at bit 32     |     codes 0-3 at bit 0    |
///     step 2  |  6,7 at 48  |  4,5 at 32    |  2,3 at 16  |  0,1 at 0   |
///     step 3  |  7   |  6   |  5   |  4     |  3   |  2   |  1  |  0    | one byte each
template <int bits>
SAFETENSORS_INLINE U64 eight_bytes(const U8* from) noexcept {
  U64 x = 0;
  for (Index i = 0; i < bits; ++i) x |= static_cast<U64>(from[i]) << (8 * i);
  if constexpr (bits < 8) {
    // Masks of one, two and four codes; then of two codes in each half, and one in each quarter.
    constexpr U64 kOne = (U64{1} << bits) - 1;
    constexpr U64 kTwo = kOne | kOne << bits;
    constexpr U64 kFour = kTwo | kTwo << (2 * bits);
    constexpr U64 kTwoOfEach = kTwo | kTwo << 32;
    constexpr U64 kOneOfEach = kOne * 0x0001000100010001U;
    x = (x & kFour) | (x & kFour << (4 * bits)) << (32 - 4 * bits);
    x = (x & kTwoOfEach) | (x & kTwoOfEach << (2 * bits)) << (16 - 2 * bits);
    x = (x & kOneOfEach) | (x & kOneOfEach << bits) << (8 - bits);
  }
  return x;
}

#if defined(__AVX2__)

/// For the shuffle of eight_floats(): which bytes each 32-bit lane gets, and the shift that brings
/// its code to the lowest bits.
template <int bits>
struct Places {
  I8 bytes[32];
  std::int32_t shifts[8];
};

template <int bits>
constexpr Places<bits> make_places() {
  Places<bits> places{};
  for (int j = 0; j < 8; ++j) {
    const int byte = j * bits / 8;
    places.shifts[j] = j * bits % 8;
    // A code lies in two bytes at most; the shuffle makes a byte of zeros for -1.
    const int next = places.shifts[j] + bits > 8 ? byte + 1 : -1;
    places.bytes[4 * j] = static_cast<I8>(byte);
    places.bytes[4 * j + 1] = static_cast<I8>(next);
    places.bytes[4 * j + 2] = -1;
    places.bytes[4 * j + 3] = -1;
  }
  return places;
}

/// Decodes eight codes.
/// Requires: 16 bytes can be read, although only the first `bits` are used.
template <int bits>
SAFETENSORS_INLINE __m256 eight_floats(const U8* from) noexcept {
  static constexpr Places<bits> kPlaces = make_places<bits>();
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(kPlaces.bytes));
  const __m256i shifts = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(kPlaces.shifts));
  const __m256i all_bytes =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
  const __m256i q = _mm256_srlv_epi32(_mm256_shuffle_epi8(all_bytes, bytes), shifts);
  return _mm256_cvtepi32_ps(_mm256_and_si256(q, _mm256_set1_epi32((1 << bits) - 1)));
}

#endif

/// The values of affine packs.
struct Affine {
  using Code = U8;
  float scale;
  float bias;
  template <typename Floats>
  SAFETENSORS_INLINE Floats operator()(const Floats& codes) const noexcept {
    return codes * scale + bias;
  }
};

/// The values of integers with a zero point; without one, it is half of the range of codes.
struct Integers {
  using Code = U8;
  float scale;
  float zero;
  template <typename Floats>
  SAFETENSORS_INLINE Floats operator()(const Floats& codes) const noexcept {
    return (codes - zero) * scale;
  }
};

/// The same for codes that are signed bytes.
struct SignedIntegers : Integers {
  using Code = I8;
};

/// Codes of four bits less half of their range, with an offset that is no code.
struct ShiftedNibbles {
  using Code = U8;
  float scale;
  float offset;
  template <typename Floats>
  SAFETENSORS_INLINE Floats operator()(const Floats& codes) const noexcept {
    return (codes - 8.0F) * scale + offset;
  }
};

/// Sixteen codes of eight bytes in the order of their nibbles, or 32 of sixteen bytes.
template <bool high_first>
SAFETENSORS_INLINE BytePair ordered_nibbles(const Bytes& bytes) noexcept {
  const BytePair halves = nibbles(bytes);
  return high_first ? interleave<1>(halves.second, halves.first)
                    : interleave<1>(halves.first, halves.second);
}

/// Decodes 32 values: 4 * `bits` bytes of codes, a whole number of words for every width.
template <int bits, typename Formula>
SAFETENSORS_INLINE void decode_32(const U8* codes, [[maybe_unused]] const U8* end,
                                  const Formula& value, float* SAFETENSORS_RESTRICT y) noexcept {
  using Code = Formula::Code;
  if constexpr (bits == 8) {
    store(value(as_floats<Code>(load_bytes(codes))), y);
    store(value(as_floats<Code>(load_bytes(codes + 16))), y + 16);
  } else if constexpr (bits == 4) {
    const BytePair q = ordered_nibbles<false>(load_bytes(codes));
    store(value(unsigned_floats(q.first)), y);
    store(value(unsigned_floats(q.second)), y + 16);
  } else {
#if defined(__AVX2__)
    if (end - codes >= 3 * bits + 16) {  // the last of the four loads stays before `end`
      for (Index k = 0; k < 4; ++k) {
        _mm256_storeu_ps(y + 8 * k, value(eight_floats<bits>(codes + k * bits)));
      }
      return;
    }
#endif
    for (Index k = 0; k < 4; k += 2) {
      const U8* from = codes + k * bits;
      const Bytes q = join(eight_bytes<bits>(from), eight_bytes<bits>(from + bits));
      store(value(unsigned_floats(q)), y + 8 * k);
    }
  }
}

/// Groups of a multiple of 32 values. `offsets` are the biases or zero points.
template <int bits, typename Formula>
void grouped(const U8* SAFETENSORS_RESTRICT codes, const U8* end, std::size_t groups,
             std::size_t group_size, const float* scales, const float* offsets,
             float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g) {
    const Formula value{scales[g], offsets[g]};
    for (std::size_t i = 0; i < group_size; i += 32, codes += std::size_t{4} * bits, y += 32) {
      decode_32<bits>(codes, end, value, y);
    }
  }
}

/// Codes of four bits in groups of 16 or 32 values. A step decodes 32 values: one group of 32, or
/// two of 16.
template <bool high_first>
void fp4(const U8* SAFETENSORS_RESTRICT codes, const U8* /*end*/, std::size_t groups,
         std::size_t group_size, const float* scales, const float* /*biases*/,
         float* SAFETENSORS_RESTRICT y) noexcept {
  const std::size_t step = group_size == 16 ? 1 : 0;  // from the scale of 16 values to the next
  while (groups > step) {
    const BytePair q = ordered_nibbles<high_first>(load_bytes(codes));
    store(e2m1_floats(q.first) * scales[0], y);
    store(e2m1_floats(q.second) * scales[step], y + 16);
    codes += 16;
    y += 32;
    scales += step + 1;
    groups -= step + 1;
  }
  if (groups == 0) return;
  // One group of 16 values remains.
  const BytePair q = ordered_nibbles<high_first>(join(load<U64>(codes), 0));
  store(e2m1_floats(q.first) * scales[0], y);
}

#if defined(__AVX2__)

/// Decodes sixteen values of E4M3 by way of F16, whose conversion is an instruction that also
/// handles subnormal numbers. With the magnitude moved up by 7 bits, E4M3's exponent lies in F16's.
/// F16's bias is 15 instead of 7, so the result is 2^8 = 256 times too small.
///
///     E4M3   s eeee fff              moved up:   s 0eeee fff0000000   (F16: s eeeee ffffffffff)
SAFETENSORS_INLINE Values e4m3_floats(const U8* from) noexcept {
  const __m256i codes =
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
  const __m256i mask = _mm256_set1_epi16(0x7F);
  const __m256i magnitudes = _mm256_and_si256(codes, mask);
  // For the code of NaN all bits below the sign are set, which is a NaN of F16.
  const __m256i halves =
      _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitudes, 7),
                                      _mm256_slli_epi16(_mm256_andnot_si256(mask, codes), 8)),
                      _mm256_srli_epi16(_mm256_cmpeq_epi16(magnitudes, mask), 1));
  Values to;
  to.lanes[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  to.lanes[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  return to * 256.0F;
}

#endif

inline void fp8(const U8* SAFETENSORS_RESTRICT codes, const U8* /*end*/, std::size_t groups,
                std::size_t group_size, const float* scales, const float* /*biases*/,
                float* SAFETENSORS_RESTRICT y) noexcept {
  for (; groups != 0; --groups, ++scales) {
    const float s = *scales;
#if defined(__AVX2__)
    for (std::size_t i = 0; i < group_size; i += 16) store(e4m3_floats(codes + i) * s, y + i);
#else
    for (std::size_t i = 0; i < group_size; ++i) y[i] = e4m3_to_f32(codes[i]) * s;
#endif
    codes += group_size;
    y += group_size;
  }
}

/// The value of a code of E2M3: sign, two bits of exponent with a bias of 1, three of fraction.
/// Normal numbers: the fraction moves up by 23 - 3 = 20 bits, and the exponent grows by 127 - 1.
/// Others are code / 8.
SAFETENSORS_INLINE float e2m3_to_f32(U32 code) noexcept {
  const U32 magnitude = code & 31U;
  const float low = to_float(static_cast<int>(magnitude)) * 0.125F;
  const U32 bits = magnitude < 8 ? bits_as<U32>(low) : (magnitude << 20) + (126U << 23);
  return bits_as<float>(bits | (code & 32U) << 26);
}

#if defined(__AVX2__)

/// Decodes sixteen codes of E2M3 in twelve bytes, by way of F16 as e4m3_floats() does. F16's bias
/// is 15 instead of 1, so the result is 2^14 times too small.
///
///     16 bits with a code at the top   s ee fff ..........
///     F16                              s 000ee fff0000000
///
/// Requires: 22 bytes can be read.
SAFETENSORS_INLINE Values e2m3_floats(const U8* from) noexcept {
  const __m256i bytes =
      _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from + 6)),
                       _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
  // Codes 0 to 7 begin at the bits 0, 6, 12 ... of six bytes. Each gets the two bytes around it.
  const __m256i places =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, -1));
  // Shifts by 10, 4, 6, 8: a code's lowest bit is bit 0, 6, 4 or 2 of its two bytes.
  const __m256i shifts = _mm256_set1_epi64x(0x0100004000100400);
  const __m256i tops = _mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, places), shifts);
  const __m256i signs = _mm256_and_si256(tops, _mm256_set1_epi16(static_cast<short>(0x8000)));
  const __m256i magnitudes =
      _mm256_and_si256(_mm256_srli_epi16(tops, 3), _mm256_set1_epi16(0x0F80));
  const __m256i halves = _mm256_or_si256(signs, magnitudes);
  Values to;
  to.lanes[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  to.lanes[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  return to * 0x1p14F;
}

#endif

/// Codes of six bits in groups of a multiple of 16 values: four codes in three bytes, the first in
/// the lowest bits.
inline void fp6(const U8* SAFETENSORS_RESTRICT codes, [[maybe_unused]] const U8* end,
                std::size_t groups, std::size_t group_size, const float* scales,
                const float* /*offsets*/, float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::size_t i = 0; i < group_size; i += 16, codes += 12, y += 16) {
#if defined(__AVX2__)
      if (end - codes >= 22) {  // the second load ends there
        store(e2m3_floats(codes) * scales[g], y);
        continue;
      }
#endif
      for (Index k = 0; k < 16; ++k) {
        const U8* const three = codes + k / 4 * 3;
        const U32 word =
            three[0] | static_cast<U32>(three[1]) << 8 | static_cast<U32>(three[2]) << 16;
        y[k] = e2m3_to_f32(word >> (k % 4 * 6) & 63U) * scales[g];
      }
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

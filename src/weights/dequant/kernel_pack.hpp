// MLX's packs: groups of values that share a scale.
#pragma once

#include "weights/dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Eight values of `bits` bits, the first from the low end, to a byte each: halves are moved apart,
/// then quarters, then eighths.
template <int bits>
SAFETENSORS_INLINE U64 eight_bytes(const U8* from) noexcept {
  U64 x = 0;
  for (Index i = 0; i < bits; ++i) x |= static_cast<U64>(from[i]) << (8 * i);
  if constexpr (bits < 8) {
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

/// Where eight values of `bits` bits begin, in lanes of 32 bits.
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
    // A value lies in two bytes at most; -1 stands for a byte of zeros.
    const int next = places.shifts[j] + bits > 8 ? byte + 1 : -1;
    places.bytes[4 * j] = static_cast<I8>(byte);
    places.bytes[4 * j + 1] = static_cast<I8>(next);
    places.bytes[4 * j + 2] = -1;
    places.bytes[4 * j + 3] = -1;
  }
  return places;
}

/// Reads 16 bytes, however few of them count.
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

/// 32 values, which fill whole words whatever their width.
template <int bits>
SAFETENSORS_INLINE void affine_32(const U8* codes, [[maybe_unused]] const U8* end, float s, float b,
                                  float* SAFETENSORS_RESTRICT y) noexcept {
  if constexpr (bits == 8) {
    store(unsigned_floats(load_bytes(codes)) * s + b, y);
    store(unsigned_floats(load_bytes(codes + 16)) * s + b, y + 16);
  } else if constexpr (bits == 4) {
    const BytePair halves = nibbles(load_bytes(codes));
    const BytePair q = interleave<1>(halves.first, halves.second);
    store(unsigned_floats(q.first) * s + b, y);
    store(unsigned_floats(q.second) * s + b, y + 16);
  } else {
#if defined(__AVX2__)
    if (end - codes >= 3 * bits + 16) {
      for (Index k = 0; k < 4; ++k) {
        _mm256_storeu_ps(y + 8 * k, eight_floats<bits>(codes + k * bits) * s + b);
      }
      return;
    }
#endif
    for (Index k = 0; k < 4; k += 2) {
      const U8* from = codes + k * bits;
      const Bytes q = join(eight_bytes<bits>(from), eight_bytes<bits>(from + bits));
      store(unsigned_floats(q) * s + b, y + 8 * k);
    }
  }
}

template <int bits>
void affine(const U8* SAFETENSORS_RESTRICT codes, const U8* end, std::size_t groups,
            std::size_t group_size, const float* scales, const float* biases,
            float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g) {
    const float s = scales[g];
    const float b = biases[g];
    for (std::size_t i = 0; i < group_size; i += 32, codes += std::size_t{4} * bits, y += 32) {
      affine_32<bits>(codes, end, s, b, y);
    }
  }
}

/// Codes of groups of 16 or 32 values, the first of a byte in its low half.
inline void fp4(const U8* SAFETENSORS_RESTRICT codes, const U8* /*end*/, std::size_t groups,
                std::size_t group_size, const float* scales, const float* /*biases*/,
                float* SAFETENSORS_RESTRICT y) noexcept {
  const std::size_t step = group_size == 16 ? 1 : 0;  // from the scale of 16 values to the next
  while (groups > step) {
    const BytePair halves = nibbles(load_bytes(codes));
    const BytePair q = interleave<1>(halves.first, halves.second);
    store(e2m1_floats(q.first) * scales[0], y);
    store(e2m1_floats(q.second) * scales[step], y + 16);
    codes += 16;
    y += 32;
    scales += step + 1;
    groups -= step + 1;
  }
  if (groups == 0) return;
  const BytePair halves = nibbles(join(load<U64>(codes), 0));
  store(e2m1_floats(interleave<1>(halves.first, halves.second).first) * scales[0], y);
}

#if defined(__AVX2__)

/// Sixteen values of E4M3, by way of F16, which has the same layout but for its exponent's offset
/// of 8 more, and does subnormal numbers in hardware.
SAFETENSORS_INLINE Values e4m3_floats(const U8* from) noexcept {
  const __m256i codes =
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
  const __m256i mask = _mm256_set1_epi16(0x7F);
  const __m256i magnitudes = _mm256_and_si256(codes, mask);
  // A code of NaN gets all bits, which is NaN in F16.
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

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

// Plain types, whose values are stored one by one, and rounding to 16 bits.
#pragma once

#include "dequant/kernel_base.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Converts numbers of type `Value`, which are loaded as unsigned numbers of the same size.
template <typename Stored, typename Value>
void plain(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
           float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    y[i] = static_cast<float>(bits_as<Value>(load<Stored>(x + i * sizeof(Stored))));
  }
}

constexpr auto i8 = &plain<U8, std::int8_t>;
constexpr auto i16 = &plain<U16, std::int16_t>;
constexpr auto i32 = &plain<U32, std::int32_t>;
constexpr auto i64 = &plain<U64, std::int64_t>;
constexpr auto f64 = &plain<U64, double>;

inline void f32(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) y[i] = bits_as<float>(load<U32>(x + i * 4));
}

inline void bf16(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    y[i] = bits_as<float>(static_cast<U32>(load<U16>(x + i * 2)) << 16);
  }
}

inline void f16(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                float* SAFETENSORS_RESTRICT y) noexcept {
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(
        y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(x + i * 2))));
  }
#endif
  for (; i < count; ++i) y[i] = f16_to_f32(load<U16>(x + i * 2));
}

inline void to_f16(const float* SAFETENSORS_RESTRICT x, std::size_t count,
                   U8* SAFETENSORS_RESTRICT y) noexcept {
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(y + i * 2),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < count; ++i) {
    const U16 half = f32_to_f16(x[i]);
    std::memcpy(y + i * 2, &half, 2);
  }
}

#if defined(__AVX2__)

/// Rounds sixteen values to BF16, of which none is NaN; see f32_to_bf16().
SAFETENSORS_INLINE __m256i bf16_of_numbers(__m256 first, __m256 second) noexcept {
  const auto rounded = [](__m256 values) SAFETENSORS_INLINE_LAMBDA {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  };
  // Packs each half by itself: 0 to 3, 8 to 11; 4 to 7, 12 to 15.
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(first), rounded(second)), 0xD8);
}

#endif

inline void to_bf16(const float* SAFETENSORS_RESTRICT x, std::size_t count,
                    U8* SAFETENSORS_RESTRICT y) noexcept {
  std::size_t i = 0;
  while (i < count) {
#if defined(__AVX2__)
    for (; i + 16 <= count; i += 16) {
      const __m256 first = _mm256_loadu_ps(x + i);
      const __m256 second = _mm256_loadu_ps(x + i + 8);
      if (_mm256_movemask_ps(_mm256_cmp_ps(first, second, _CMP_UNORD_Q)) != 0) break;  // a NaN
      _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(y + i * 2), bf16_of_numbers(first, second));
    }
    const std::size_t end = count - i < 16 ? count : i + 16;
#else
    const std::size_t end = count;
#endif
    for (; i < end; ++i) {
      const U16 half = f32_to_bf16(x[i]);
      std::memcpy(y + i * 2, &half, 2);
    }
  }
}

/// Counts the finite values from 65520 (0x477FF000) on, which F16 rounds to infinity. Subtracting
/// the lower end makes the test of a range one unsigned comparison.
inline std::size_t count_f16_overflow(const float* x, std::size_t count) noexcept {
  std::size_t all = 0;
  while (count != 0) {
    // A 32-bit counter has the size of the floats, so that the loop vectorises without widening.
    const std::size_t part = count < 65536 ? count : 65536;
    U32 found = 0;
    for (std::size_t i = 0; i < part; ++i) {
      const U32 magnitude = bits_as<U32>(x[i]) & 0x7FFFFFFFU;
      found += magnitude - 0x477FF000U < 0x7F800000U - 0x477FF000U ? 1U : 0U;
    }
    all += found;
    x += part;
    count -= part;
  }
  return all;
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

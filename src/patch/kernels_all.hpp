// One build of all kernels, in namespace SAFETENSORS_VARIANT.
//
// The code must not call inline functions or templates from outside that namespace. The linker
// keeps only one copy of those, and the copy may use instructions that older processors do not
// have.
#pragma once

#if !defined(SAFETENSORS_VARIANT)
#error "for kernels_*.cpp only"
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>

#include "base/xxh3.hpp"
#include "patch/kernels.hpp"

namespace safetensors::patch::SAFETENSORS_VARIANT {

using U8 = std::uint8_t;
using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

constexpr bool kIsLittle = std::endian::native == std::endian::little;

/// Returns a unit as it is in memory.
template <typename Unit>
Unit raw_unit(const std::byte* from, std::size_t i) noexcept {
  Unit unit;
  std::memcpy(&unit, from + i * sizeof(Unit), sizeof(Unit));
  return unit;
}

template <typename Unit>
void store_raw(std::byte* to, std::size_t i, Unit unit) noexcept {
  std::memcpy(to + i * sizeof(Unit), &unit, sizeof(Unit));
}

/// Converts between the order of bytes in memory and the processor's.
template <typename Unit>
Unit ordered(Unit unit) noexcept {
  if constexpr (kIsLittle || sizeof(Unit) == 1) {
    return unit;
  } else {
    U64 reversed = 0;
    for (std::size_t i = 0; i < sizeof(Unit); ++i) {
      reversed = reversed << 8 | (static_cast<U64>(unit) >> (8 * i) & 0xFF);
    }
    return static_cast<Unit>(reversed);
  }
}

inline std::size_t bit_count(U64 word) noexcept {
#if defined(__GNUC__)
  return static_cast<std::size_t>(__builtin_popcountll(word));
#else
  return static_cast<std::size_t>(std::popcount(word));
#endif
}

/// Returns the number of the lowest bit that is set; 63 if none is.
inline U16 lowest_bit(U64 word) noexcept {
  word |= U64{1} << 63;
#if defined(__GNUC__)
  return static_cast<U16>(__builtin_ctzll(word));
#else
  return static_cast<U16>(std::countr_zero(word));
#endif
}

#if defined(__AVX2__)

constexpr std::size_t kAhead = 2048;

inline __m256i load_vector(const std::byte* from, std::size_t i) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
}

/// Returns which of the units in 32 bytes are equal, as bits.
template <typename Unit>
U32 equal_units(__m256i a, __m256i b) noexcept {
  if constexpr (sizeof(Unit) == 1) {
    return static_cast<U32>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)));
  } else if constexpr (sizeof(Unit) == 4) {
    return static_cast<U32>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))));
  } else {
    return static_cast<U32>(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(a, b))));
  }
}

/// Returns which of 64 units differ, as bits.
template <typename Unit>
U64 differing_units(const std::byte* a, const std::byte* b) noexcept {
  // Far enough ahead for memory, and also across the pages at which the processor's own stops.
  for (std::size_t line = 0; line < sizeof(Unit); ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(a + kAhead + 64 * line), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(b + kAhead + 64 * line), _MM_HINT_T0);
  }
  U64 equal = 0;
  if constexpr (sizeof(Unit) == 2) {
    for (std::size_t i = 0; i < 4; i += 2) {
      const __m256i first = _mm256_cmpeq_epi16(load_vector(a, i), load_vector(b, i));
      const __m256i second = _mm256_cmpeq_epi16(load_vector(a, i + 1), load_vector(b, i + 1));
      // Packing works on halves of vectors, so the middle quarters change places.
      const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
      equal |= U64{static_cast<U32>(_mm256_movemask_epi8(both))} << (16 * i);
    }
  } else {
    constexpr std::size_t kUnits = 32 / sizeof(Unit);
    for (std::size_t i = 0; i < 64 / kUnits; ++i) {
      equal |= U64{equal_units<Unit>(load_vector(a, i), load_vector(b, i))} << (kUnits * i);
    }
  }
  return ~equal;
}

#else

/// Returns eight bytes that are 0 or 1 as bits, the first as the lowest.
inline U64 packed_bits(const U8* flags) noexcept {
  U64 word = 0;
  std::memcpy(&word, flags, sizeof word);
  // The product has byte i of the word at bit 56 + i, and nothing carries into these bits.
  return ordered(word) * 0x0102040810204080U >> 56;
}

/// Returns which of 64 units differ, as bits.
template <typename Unit>
U64 differing_units(const std::byte* a, const std::byte* b) noexcept {
  U8 flags[64];
  for (std::size_t i = 0; i < 64; ++i) flags[i] = raw_unit<Unit>(a, i) != raw_unit<Unit>(b, i);
  U64 word = 0;
  for (std::size_t i = 0; i < 64; i += 8) word |= packed_bits(flags + i) << i;
  return word;
}

#endif

template <typename Unit>
std::size_t compare(const std::byte* a, const std::byte* b, std::size_t count,
                    U64* differs) noexcept {
  std::size_t found = 0;
  for (; count >= 64; count -= 64, a += 64 * sizeof(Unit), b += 64 * sizeof(Unit)) {
    const U64 word = differing_units<Unit>(a, b);
    *differs++ = word;
    found += bit_count(word);
  }
  if (count == 0) return found;
  U64 word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    word |= U64{raw_unit<Unit>(a, i) != raw_unit<Unit>(b, i)} << i;
  }
  *differs = word;
  return found + bit_count(word);
}

template <typename Unit>
void gather(const std::byte* block, const U16* at, std::size_t count, std::byte* to) noexcept {
  for (std::size_t j = 0; j < count; ++j) store_raw(to, j, raw_unit<Unit>(block, at[j]));
}

template <typename Unit>
void scatter(std::byte* block, const U16* at, std::size_t count, const std::byte* from) noexcept {
  for (std::size_t j = 0; j < count; ++j) store_raw(block, at[j], raw_unit<Unit>(from, j));
}

template <typename Unit>
std::size_t subtract(std::byte* old, const std::byte* now, std::size_t count,
                     std::byte* steps) noexcept {
  std::size_t wide = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const Unit unit = raw_unit<Unit>(now, j);
    const Unit step = static_cast<Unit>(ordered(unit) - ordered(raw_unit<Unit>(old, j)));
    const bool is_wide = static_cast<Unit>(step + 127U) > 254U;
    steps[j] = is_wide ? std::byte{0x80} : static_cast<std::byte>(step & 0xFF);
    // Written in any case, without a branch: the old unit there was read before.
    store_raw(old, wide, unit);
    wide += is_wide;
  }
  return wide;
}

template <typename Unit>
std::size_t add(std::byte* units, const std::byte* steps, std::size_t count, const std::byte* wide,
                std::size_t wide_count) noexcept {
  std::size_t used = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto step = static_cast<U8>(steps[j]);
    if (step == 0x80) {
      if (used < wide_count) store_raw(units, j, raw_unit<Unit>(wide, used));
      ++used;
      continue;
    }
    // Extends the sign.
    const U64 number = (U64{step} ^ 0x80U) - 0x80U;
    store_raw(units, j, ordered(static_cast<Unit>(ordered(raw_unit<Unit>(units, j)) + number)));
  }
  return used;
}

inline std::size_t list_bits(const U64* words, std::size_t count, U16* at) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    U64 word = words[i];
    const auto first = static_cast<U16>(64 * i);
    const std::size_t here = bit_count(word);
    // Most words have few bits: the same work for all of these takes less time than a wrong guess.
    for (std::size_t j = 0; j < 4; ++j, word &= word - 1) {
      at[found + j] = static_cast<U16>(first + lowest_bit(word));
    }
    for (std::size_t j = 4; j < here; ++j, word &= word - 1) {
      at[found + j] = static_cast<U16>(first + lowest_bit(word));
    }
    found += here;
  }
  return found;
}

inline U64 xxh3_64(const std::byte* bytes, std::size_t size) noexcept {
  return XXH3_64bits(bytes, size);
}

template <typename Unit>
constexpr UnitKernels unit_kernels() noexcept {
  return {&compare<Unit>, &gather<Unit>, &scatter<Unit>, &subtract<Unit>, &add<Unit>};
}

constexpr Kernels make_kernels(const char* name) noexcept {
  return {name,
          {unit_kernels<U8>(), unit_kernels<U16>(), unit_kernels<U32>(), unit_kernels<U64>()},
          &list_bits,
          &xxh3_64};
}

}  // namespace safetensors::patch::SAFETENSORS_VARIANT

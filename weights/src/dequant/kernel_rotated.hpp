// Undoes rotations by Hadamard matrices, see rotated.hpp: codes, integers, sums, values.
#pragma once

#include "dequant/kernel_blocks.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

using I16 = std::int16_t;

/// Writes codes of four bits as bytes; the first of two is in the low nibble. `count` is even.
/// `sign` is 8 for signed codes and 0 for others.
inline void unpack_nibbles(const U8* SAFETENSORS_RESTRICT codes, std::size_t count, U8 sign,
                           I8* SAFETENSORS_RESTRICT to) noexcept {
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const BytePair halves = nibbles(load_bytes(codes + i / 2));
    const BytePair q = interleave<1>(halves.first, halves.second);
    const Bytes first = (q.first ^ all(sign)) - all(sign);
    const Bytes second = (q.second ^ all(sign)) - all(sign);
    store(first, to + i);
    store(second, to + i + 16);
  }
  for (; i < count; ++i) {
    const int code = codes[i / 2] >> (i % 2 * 4) & 15;
    to[i] = static_cast<I8>((code ^ sign) - sign);
  }
}

/// Adds bits 4 and 5 to codes: four codes have theirs in one byte, the first in its lowest bits.
inline void add_upper_bits(const U8* SAFETENSORS_RESTRICT upper, std::size_t count,
                           I8* SAFETENSORS_RESTRICT codes) noexcept {
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const Quarters q = quarters(load_bytes(upper + i / 4));
    const Bytes parts[4] = {q.low.first, q.low.second, q.high.first, q.high.second};
    for (Index k = 0; k < 4; ++k) {
      I8* const place = codes + i + 16 * k;
      store(load_bytes(reinterpret_cast<U8*>(place)) | up(parts[k], 4), place);
    }
  }
  for (; i < count; ++i) {
    codes[i] = static_cast<I8>(codes[i] | (upper[i / 4] >> (i % 4 * 2) & 3) << 4);
  }
}

/// Replaces codes of four bits by round(values[code] * scale of the group).
inline void round_nibbles(I8* codes, std::size_t groups, std::size_t group_size,
                          const float* scales, const float* values) noexcept {
  for (std::size_t g = 0; g < groups; ++g, codes += group_size) {
    // A group has no more than 16 different results.
    NibbleTable table;
    store(rounded_bytes(load_values(values) * scales[g]), table.values);
    std::size_t i = 0;
    for (; i + 16 <= group_size; i += 16) {
      store(look_up(table, load_bytes(reinterpret_cast<U8*>(codes + i))), codes + i);
    }
    for (; i < group_size; ++i) codes[i] = table.values[codes[i]];
  }
}

/// Replaces codes of six bits by round((code - 32) * scale of the group).
inline void round_six_bits(I8* codes, std::size_t groups, std::size_t group_size,
                           const float* scales) noexcept {
  const auto rounded = [](const U8* from, float scale) SAFETENSORS_INLINE_LAMBDA {
    return rounded_bytes((unsigned_floats(load_bytes(from)) - 32.0F) * scale);
  };
  for (std::size_t g = 0; g < groups; ++g, codes += group_size) {
    std::size_t i = 0;
    for (; i + 16 <= group_size; i += 16) {
      store(rounded(reinterpret_cast<U8*>(codes + i), scales[g]), codes + i);
    }
    if (i == group_size) continue;
    U8 rest[16] = {};
    std::memcpy(rest, codes + i, group_size - i);
    store(rounded(rest, scales[g]), rest);
    std::memcpy(codes + i, rest, group_size - i);
  }
}

/// Four values times the matrix h, which is symmetric.
template <typename Value>
struct Rotated4 {
  Value a, b, c, d;
  SAFETENSORS_INLINE Rotated4(const Value& w, const Value& x, const Value& y,
                              const Value& z) noexcept {
    const Value sum = w + x;
    const Value difference = w - x;
    const Value other_sum = y + z;
    const Value other_difference = y - z;
    a = sum + other_difference;
    b = sum - other_difference;
    c = difference + other_sum;
    d = other_sum - difference;
  }
};

#if defined(SAFETENSORS_VECTORS)

/// As many integers as a register has. Unsigned, because sums of signed ones must not overflow,
/// even for a moment.
#if defined(__AVX2__)
using Shorts = U16 __attribute__((vector_size(32)));
#else
using Shorts = U16 __attribute__((vector_size(16)));
#endif
constexpr std::size_t kShorts = sizeof(Shorts) / 2;

SAFETENSORS_INLINE Shorts load_shorts(const I16* from) noexcept {
  Shorts shorts;
  std::memcpy(&shorts, from, sizeof shorts);
  return shorts;
}
SAFETENSORS_INLINE void store(const Shorts& shorts, I16* to) noexcept {
  std::memcpy(to, &shorts, sizeof shorts);
}

#if defined(__AVX2__)
#define SAFETENSORS_SHUFFLED(x, a, b, c, d, e, f, g, h)                                     \
  __builtin_shufflevector(x, x, a, b, c, d, e, f, g, h, 8 + (a), 8 + (b), 8 + (c), 8 + (d), \
                          8 + (e), 8 + (f), 8 + (g), 8 + (h))
#else
#define SAFETENSORS_SHUFFLED(x, a, b, c, d, e, f, g, h) \
  __builtin_shufflevector(x, x, a, b, c, d, e, f, g, h)
#endif

/// The factor of neighbours. h * x is the sum of the four x less twice their reverse.
SAFETENSORS_INLINE Shorts rotated_neighbours(const Shorts& x) noexcept {
  Shorts sum = x + SAFETENSORS_SHUFFLED(x, 1, 0, 3, 2, 5, 4, 7, 6);
  sum += SAFETENSORS_SHUFFLED(sum, 2, 3, 0, 1, 6, 7, 4, 5);
  const Shorts reverse = SAFETENSORS_SHUFFLED(x, 3, 2, 1, 0, 7, 6, 5, 4);
  return sum - (reverse + reverse);
}

/// Exchanges the two fours of each eight.
SAFETENSORS_INLINE Shorts swapped_fours(const Shorts& x) noexcept {
  return SAFETENSORS_SHUFFLED(x, 4, 5, 6, 7, 0, 1, 2, 3);
}
#undef SAFETENSORS_SHUFFLED

/// The factors for columns that are 1 and 4 apart, of 16 columns; or only the first.
template <bool only_first>
SAFETENSORS_INLINE void rotate_16(const I8* from, I16* to) noexcept {
#if defined(__AVX2__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
  const Shorts x = rotated_neighbours(reinterpret_cast<Shorts>(_mm256_cvtepi8_epi16(bytes)));
  if constexpr (only_first) {
    store(x, to);
  } else {
    const Shorts sums = x + swapped_fours(x);
    const __m256i other_sums = _mm256_permute4x64_epi64(reinterpret_cast<__m256i>(sums), 0x4E);
    const auto reverse =
        reinterpret_cast<Shorts>(_mm256_permute4x64_epi64(reinterpret_cast<__m256i>(x), 0x1B));
    store(sums + reinterpret_cast<Shorts>(other_sums) - (reverse + reverse), to);
  }
#else
  // Each byte, and its sign: integers of 16 bits.
  using SignedBytes = I8 __attribute__((vector_size(16)));
  const Bytes bytes = load_bytes(reinterpret_cast<const U8*>(from));
  const Bytes signs = reinterpret_cast<Bytes>(reinterpret_cast<SignedBytes>(bytes) < 0);
  const BytePair pair = interleave<1>(bytes, signs);
  const Shorts x = rotated_neighbours(reinterpret_cast<Shorts>(pair.first));
  const Shorts y = rotated_neighbours(reinterpret_cast<Shorts>(pair.second));
  if constexpr (only_first) {
    store(x, to);
    store(y, to + 8);
  } else {
    const Shorts sums = x + y;
    const Shorts sum = sums + swapped_fours(sums);
    const Shorts first = swapped_fours(y);
    const Shorts second = swapped_fours(x);
    store(sum - (first + first), to);
    store(sum - (second + second), to + 8);
  }
#endif
}

#else

using Shorts = std::int32_t;
constexpr std::size_t kShorts = 1;

SAFETENSORS_INLINE Shorts load_shorts(const I16* from) noexcept { return *from; }
SAFETENSORS_INLINE void store(Shorts value, I16* to) noexcept { *to = static_cast<I16>(value); }

template <bool only_first>
inline void rotate_16(const I8* from, I16* to) noexcept {
  for (int i = 0; i < 16; ++i) to[i] = from[i];
  for (int stride = 1; stride < (only_first ? 4 : 16); stride *= 4) {
    for (int i = 0; i < 16; ++i) {
      if (i / stride % 4 != 0) continue;
      I16* const x = to + i;
      const Rotated4<Shorts> all(x[0], x[stride], x[2 * stride], x[3 * stride]);
      store(all.a, x);
      store(all.b, x + stride);
      store(all.c, x + 2 * stride);
      store(all.d, x + 3 * stride);
    }
  }
}

#endif

/// Sixteen integers.
SAFETENSORS_INLINE Values short_floats(const I16* from) noexcept {
  Values to;
#if defined(__AVX2__) && !defined(__AVX512F__)
  for (Index i = 0; i < 2; ++i) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from + 8 * i));
    to.lanes[i] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight));
  }
#else
  float floats[16];
  for (Index i = 0; i < 16; ++i) floats[i] = to_float(from[i]);
  std::memcpy(to.lanes, floats, sizeof floats);
#endif
  return to;
}

/// Of `count` columns, a multiple of 16, the factors for those that are 1 and 4 apart.
template <bool only_first>
SAFETENSORS_INLINE void rotate_neighbours(const I8* from, std::size_t count, I16* to) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) rotate_16<only_first>(from + i, to + i);
  if (i == count) return;
  I8 rest[16] = {};
  std::memcpy(rest, from + i, count - i);
  rotate_16<only_first>(rest, to + i);
}

/// The factor for columns that are `stride` apart, a multiple of 16.
SAFETENSORS_INLINE void rotate_step(I16* values, std::size_t count, std::size_t stride) noexcept {
  for (std::size_t block = 0; block < count; block += 4 * stride) {
    for (std::size_t i = block; i < block + stride; i += kShorts) {
      I16* const x = values + i;
      const Rotated4<Shorts> to(load_shorts(x), load_shorts(x + stride),
                                load_shorts(x + 2 * stride), load_shorts(x + 3 * stride));
      store(to.a, x);
      store(to.b, x + stride);
      store(to.c, x + 2 * stride);
      store(to.d, x + 3 * stride);
    }
  }
}

/// All sums but the last fit in 16 bits: they are those of 256 bytes at most, and no row of the
/// matrix has -1 alone, so that 32768 is not reached. Floats represent the last one exactly.
inline void rotate(const I8* integers, std::size_t count, std::size_t rotation, float scale,
                   float inverse_root, I16* sums, float* y) noexcept {
  if (rotation == 4) {
    rotate_neighbours<true>(integers, count, sums);
  } else {
    rotate_neighbours<false>(integers, count, sums);
  }
  if (rotation <= 16) {
    for (std::size_t i = 0; i < count; ++i) y[i] = to_float(sums[i]) * scale * inverse_root;
    return;
  }
  const std::size_t stride = rotation / 4;
  for (std::size_t each = 16; each < stride; each *= 4) rotate_step(sums, count, each);
  for (std::size_t block = 0; block < count; block += rotation) {
    for (std::size_t i = block; i < block + stride; i += 16) {
      const I16* const x = sums + i;
      const Rotated4<Values> to(short_floats(x), short_floats(x + stride),
                                short_floats(x + 2 * stride), short_floats(x + 3 * stride));
      store(to.a * scale * inverse_root, y + i);
      store(to.b * scale * inverse_root, y + i + stride);
      store(to.c * scale * inverse_root, y + i + 2 * stride);
      store(to.d * scale * inverse_root, y + i + 3 * stride);
    }
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

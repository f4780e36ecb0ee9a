// Vectors of sixteen bytes, and of the sixteen floats that are made of them: most kernels work with
// these. Three implementations: the vector extensions of GCC and clang; x86 intrinsics for
// operations that the extensions cannot express; plain arrays for other compilers.
#pragma once

#include "dequant/kernel_base.hpp"

#if defined(__AVX512F__)
#define SAFETENSORS_LANE_NBYTES 64
#elif defined(__AVX2__)
#define SAFETENSORS_LANE_NBYTES 32
#else
#define SAFETENSORS_LANE_NBYTES 16
#endif

// SAFETENSORS_NO_VECTORS selects plain arrays, to test them.
#if defined(__GNUC__) && !defined(SAFETENSORS_NO_VECTORS)
#define SAFETENSORS_VECTORS 1
#endif

namespace safetensors::weights::SAFETENSORS_VARIANT {

#if defined(SAFETENSORS_VECTORS)

using Bytes = U8 __attribute__((vector_size(16)));
using Pairs = U16 __attribute__((vector_size(16)));
using Lane = float __attribute__((vector_size(SAFETENSORS_LANE_NBYTES)));

/// Sixteen times the same byte.
SAFETENSORS_INLINE Bytes all(U8 byte) noexcept { return Bytes{} + byte; }

/// Shifts each byte right by less than 8. SSE2 and AVX2 shift 16-bit words at the least, so the
/// upper `count` bits of a byte come from its neighbour: the caller masks them off.
SAFETENSORS_INLINE Bytes down(Bytes bytes, Index count) noexcept {
  return reinterpret_cast<Bytes>(reinterpret_cast<Pairs>(bytes) >> static_cast<U16>(count));
}

/// Shifts each byte left.
/// Requires: the upper `count` bits are clear, so that none moves into the neighbour.
SAFETENSORS_INLINE Bytes up(Bytes bytes, Index count) noexcept {
  return reinterpret_cast<Bytes>(reinterpret_cast<Pairs>(bytes) << static_cast<U16>(count));
}

#else

struct Bytes {
  U8 b[16];
};
struct Lane {
  float f[SAFETENSORS_LANE_NBYTES / 4];
};

#define SAFETENSORS_EACH_BYTE(expression)                               \
  Bytes to;                                                             \
  for (Index i = 0; i < 16; ++i) to.b[i] = static_cast<U8>(expression); \
  return to
inline Bytes operator&(const Bytes& x, const Bytes& y) noexcept {
  SAFETENSORS_EACH_BYTE(x.b[i] & y.b[i]);
}
inline Bytes operator|(const Bytes& x, const Bytes& y) noexcept {
  SAFETENSORS_EACH_BYTE(x.b[i] | y.b[i]);
}
inline Bytes operator^(const Bytes& x, const Bytes& y) noexcept {
  SAFETENSORS_EACH_BYTE(x.b[i] ^ y.b[i]);
}
inline Bytes operator+(const Bytes& x, const Bytes& y) noexcept {
  SAFETENSORS_EACH_BYTE(x.b[i] + y.b[i]);
}
inline Bytes operator-(const Bytes& x, const Bytes& y) noexcept {
  SAFETENSORS_EACH_BYTE(x.b[i] - y.b[i]);
}
inline Bytes all(U8 byte) noexcept { SAFETENSORS_EACH_BYTE(byte); }
inline Bytes down(const Bytes& x, Index count) noexcept { SAFETENSORS_EACH_BYTE(x.b[i] >> count); }
inline Bytes up(const Bytes& x, Index count) noexcept { SAFETENSORS_EACH_BYTE(x.b[i] << count); }
#undef SAFETENSORS_EACH_BYTE

#define SAFETENSORS_EACH_FLOAT(expression)                                      \
  Lane to;                                                                      \
  for (Index i = 0; i < SAFETENSORS_LANE_NBYTES / 4; ++i) to.f[i] = expression; \
  return to
inline Lane operator*(const Lane& x, float y) noexcept { SAFETENSORS_EACH_FLOAT(x.f[i] * y); }
inline Lane operator+(const Lane& x, float y) noexcept { SAFETENSORS_EACH_FLOAT(x.f[i] + y); }
inline Lane operator-(const Lane& x, float y) noexcept { SAFETENSORS_EACH_FLOAT(x.f[i] - y); }
inline Lane operator+(const Lane& x, const Lane& y) noexcept {
  SAFETENSORS_EACH_FLOAT(x.f[i] + y.f[i]);
}
inline Lane operator-(const Lane& x, const Lane& y) noexcept {
  SAFETENSORS_EACH_FLOAT(x.f[i] - y.f[i]);
}
#undef SAFETENSORS_EACH_FLOAT

#endif

SAFETENSORS_INLINE Bytes load_bytes(const U8* from) noexcept {
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return bytes;
}

SAFETENSORS_INLINE void store(const Bytes& bytes, void* to) noexcept {
  std::memcpy(to, &bytes, sizeof bytes);
}

/// Sixteen bytes: those of `low` from its lowest on, then those of `high`.
SAFETENSORS_INLINE Bytes join(U64 low, U64 high) noexcept {
#if defined(__SSE2__) && defined(SAFETENSORS_VECTORS)
  return reinterpret_cast<Bytes>(
      _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
#else
  const U64 both[2] = {in_order(low), in_order(high)};
  Bytes bytes;
  std::memcpy(&bytes, both, sizeof bytes);
  return bytes;
#endif
}

/// Byte i is 0xFF if bit i of `bits` is set, else 0.
SAFETENSORS_INLINE Bytes mask_of(U32 bits) noexcept {
#if defined(__SSSE3__) && defined(SAFETENSORS_VECTORS)
  // Bytes 0 to 7 get a copy of the lower byte of `bits`, bytes 8 to 15 of the upper one. Each keeps
  // its own bit only, and is then compared with it.
  const Bytes own = join(0x8040201008040201U, 0x8040201008040201U);
  const Bytes places = join(0, 0x0101010101010101U);
  const auto copies = reinterpret_cast<Bytes>(_mm_shuffle_epi8(
      _mm_cvtsi32_si128(static_cast<int>(bits)), reinterpret_cast<__m128i>(places)));
  return reinterpret_cast<Bytes>((copies & own) == own);
#else
  return join((spread_bits(bits) >> 7) * 0xFF, (spread_bits(bits >> 8) >> 7) * 0xFF);
#endif
}

/// Negates the bytes whose mask is 0xFF: -x is ~x + 1, which is (x ^ 0xFF) - 0xFF modulo 256.
SAFETENSORS_INLINE Bytes negated(const Bytes& bytes, const Bytes& mask) noexcept {
  return (bytes ^ mask) - mask;
}

/// 32 bytes: the first and the second half.
struct BytePair {
  Bytes first;
  Bytes second;
};

/// Alternates `width` bytes of x and `width` bytes of y: x0 y0 x1 y1 ...
template <int width>
SAFETENSORS_INLINE BytePair interleave(const Bytes& x, const Bytes& y) noexcept {
#if defined(__SSE2__) && defined(SAFETENSORS_VECTORS)
  const auto a = reinterpret_cast<__m128i>(x);
  const auto b = reinterpret_cast<__m128i>(y);
  if constexpr (width == 1) {
    return {reinterpret_cast<Bytes>(_mm_unpacklo_epi8(a, b)),
            reinterpret_cast<Bytes>(_mm_unpackhi_epi8(a, b))};
  } else if constexpr (width == 2) {
    return {reinterpret_cast<Bytes>(_mm_unpacklo_epi16(a, b)),
            reinterpret_cast<Bytes>(_mm_unpackhi_epi16(a, b))};
  } else if constexpr (width == 4) {
    return {reinterpret_cast<Bytes>(_mm_unpacklo_epi32(a, b)),
            reinterpret_cast<Bytes>(_mm_unpackhi_epi32(a, b))};
  } else {
    static_assert(width == 8);
    return {reinterpret_cast<Bytes>(_mm_unpacklo_epi64(a, b)),
            reinterpret_cast<Bytes>(_mm_unpackhi_epi64(a, b))};
  }
#else
  U8 from[2][16];
  U8 to[32];
  std::memcpy(from[0], &x, 16);
  std::memcpy(from[1], &y, 16);
  for (Index i = 0; i < 32; ++i) to[i] = from[i / width % 2][i / (2 * width) * width + i % width];
  return {load_bytes(to), load_bytes(to + 16)};
#endif
}

/// Replaces each code by its value in the table.
/// Requires: codes below 16.
SAFETENSORS_INLINE Bytes look_up(const NibbleTable& table, const Bytes& codes) noexcept {
#if defined(__SSSE3__) && defined(SAFETENSORS_VECTORS)
  return reinterpret_cast<Bytes>(
      _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(table.values)),
                       reinterpret_cast<__m128i>(codes)));
#else
  U8 bytes[16];
  std::memcpy(bytes, &codes, 16);
  for (Index i = 0; i < 16; ++i) bytes[i] = static_cast<U8>(table.values[bytes[i]]);
  return load_bytes(bytes);
#endif
}

/// Sixteen floats, in as many registers as they need.
struct Values {
  static constexpr int kLanes = 64 / SAFETENSORS_LANE_NBYTES;
  Lane lanes[kLanes];
};

SAFETENSORS_INLINE Values operator*(const Values& x, float y) noexcept {
  Values to;
  for (Index i = 0; i < Values::kLanes; ++i) to.lanes[i] = x.lanes[i] * y;
  return to;
}

SAFETENSORS_INLINE Values operator+(const Values& x, float y) noexcept {
  Values to;
  for (Index i = 0; i < Values::kLanes; ++i) to.lanes[i] = x.lanes[i] + y;
  return to;
}

SAFETENSORS_INLINE Values operator-(const Values& x, float y) noexcept {
  Values to;
  for (Index i = 0; i < Values::kLanes; ++i) to.lanes[i] = x.lanes[i] - y;
  return to;
}

SAFETENSORS_INLINE Values operator+(const Values& x, const Values& y) noexcept {
  Values to;
  for (Index i = 0; i < Values::kLanes; ++i) to.lanes[i] = x.lanes[i] + y.lanes[i];
  return to;
}

SAFETENSORS_INLINE Values operator-(const Values& x, const Values& y) noexcept {
  Values to;
  for (Index i = 0; i < Values::kLanes; ++i) to.lanes[i] = x.lanes[i] - y.lanes[i];
  return to;
}

SAFETENSORS_INLINE void store(const Values& values, float* to) noexcept {
  // One lane at a time: GCC copies the whole structure through memory.
  for (Index i = 0; i < Values::kLanes; ++i) {
    std::memcpy(to + i * (16 / Values::kLanes), &values.lanes[i], sizeof values.lanes[i]);
  }
}

/// Converts bytes to floats. `Integer` is the type of the bytes: I8 or U8.
template <typename Integer>
SAFETENSORS_INLINE Values as_floats(const Bytes& bytes) noexcept {
  static_assert(sizeof(Integer) == 1);
  [[maybe_unused]] constexpr bool kSigned = static_cast<Integer>(-1) < 0;
  Values to;
#if defined(__AVX512F__)
  const auto x = reinterpret_cast<__m128i>(bytes);
  to.lanes[0] = _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(x) : _mm512_cvtepu8_epi32(x));
#elif defined(__AVX2__)
  const auto x = reinterpret_cast<__m128i>(bytes);
  const __m128i y = _mm_unpackhi_epi64(x, x);
  to.lanes[0] = _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(x) : _mm256_cvtepu8_epi32(x));
  to.lanes[1] = _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(y) : _mm256_cvtepu8_epi32(y));
#elif defined(__SSE2__) && defined(SAFETENSORS_VECTORS)
  // SSE2 has no instruction that widens bytes. Interleaving with zeros twice makes 32-bit lanes:
  // unsigned bytes go to the bottom of their lane; signed ones to its top, and an arithmetic shift
  // by 24 brings them down with their sign.
  const auto x = reinterpret_cast<__m128i>(bytes);
  const __m128i zero = _mm_setzero_si128();
  const __m128i low = kSigned ? _mm_unpacklo_epi8(zero, x) : _mm_unpacklo_epi8(x, zero);
  const __m128i high = kSigned ? _mm_unpackhi_epi8(zero, x) : _mm_unpackhi_epi8(x, zero);
  const auto convert = [&](__m128i four) SAFETENSORS_INLINE_LAMBDA {
    return _mm_cvtepi32_ps(kSigned ? _mm_srai_epi32(four, 24) : four);
  };
  const auto first = [&](__m128i eight) SAFETENSORS_INLINE_LAMBDA {
    return kSigned ? _mm_unpacklo_epi16(zero, eight) : _mm_unpacklo_epi16(eight, zero);
  };
  const auto second = [&](__m128i eight) SAFETENSORS_INLINE_LAMBDA {
    return kSigned ? _mm_unpackhi_epi16(zero, eight) : _mm_unpackhi_epi16(eight, zero);
  };
  to.lanes[0] = convert(first(low));
  to.lanes[1] = convert(second(low));
  to.lanes[2] = convert(first(high));
  to.lanes[3] = convert(second(high));
#else
  Integer from[16];
  float floats[16];
  std::memcpy(from, &bytes, sizeof from);
  for (Index i = 0; i < 16; ++i) floats[i] = to_float(from[i]);
  std::memcpy(to.lanes, floats, sizeof floats);
#endif
  return to;
}

SAFETENSORS_INLINE Values signed_floats(const Bytes& bytes) noexcept {
  return as_floats<I8>(bytes);
}

SAFETENSORS_INLINE Values unsigned_floats(const Bytes& bytes) noexcept {
  return as_floats<U8>(bytes);
}

SAFETENSORS_INLINE Values load_values(const float* from) noexcept {
  Values values;
  for (Index i = 0; i < Values::kLanes; ++i) {
    std::memcpy(&values.lanes[i], from + i * (16 / Values::kLanes), sizeof values.lanes[i]);
  }
  return values;
}

/// Rounds to signed bytes from -127 to 127, ties to even. A NaN becomes -127.
SAFETENSORS_INLINE Bytes rounded_bytes(const Values& values) noexcept {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto rounded = [](Lane lane) SAFETENSORS_INLINE_LAMBDA {
    const __m256 least = _mm256_max_ps(lane, _mm256_set1_ps(-127.0F));
    return _mm256_cvtps_epi32(_mm256_min_ps(least, _mm256_set1_ps(127.0F)));
  };
  // Packs each half by itself: 0 to 3, 8 to 11; 4 to 7, 12 to 15.
  const __m256i halves = _mm256_packs_epi32(rounded(values.lanes[0]), rounded(values.lanes[1]));
  const __m256i words = _mm256_permute4x64_epi64(halves, 0xD8);
  return reinterpret_cast<Bytes>(
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__SSE2__) && defined(SAFETENSORS_VECTORS) && !defined(__AVX2__)
  const auto rounded = [](Lane lane) SAFETENSORS_INLINE_LAMBDA {
    return _mm_cvtps_epi32(_mm_min_ps(_mm_max_ps(lane, _mm_set1_ps(-127.0F)), _mm_set1_ps(127.0F)));
  };
  return reinterpret_cast<Bytes>(
      _mm_packs_epi16(_mm_packs_epi32(rounded(values.lanes[0]), rounded(values.lanes[1])),
                      _mm_packs_epi32(rounded(values.lanes[2]), rounded(values.lanes[3]))));
#else
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: a sum with it has no fraction
  float floats[16];
  U8 bytes[16];
  std::memcpy(floats, values.lanes, sizeof floats);
  for (Index i = 0; i < 16; ++i) {
    float within = floats[i] > -127.0F ? floats[i] : -127.0F;
    within = within < 127.0F ? within : 127.0F;
    bytes[i] = static_cast<U8>(static_cast<std::int32_t>((within + kShift) - kShift));
  }
  return load_bytes(bytes);
#endif
}

/// Splits sixteen bytes: all low nibbles, then all high nibbles.
SAFETENSORS_INLINE BytePair nibbles(const Bytes& bytes) noexcept {
  return {bytes & all(15), down(bytes, 4) & all(15)};
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

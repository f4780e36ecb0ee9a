// The base of all kernels: loads of little-endian numbers, and conversions of single values.
//
// The files kernel_*.hpp are compiled once for each instruction set, each time in its own
// namespace. They must not call inline functions or templates from outside that namespace. The
// linker keeps only one copy of those, and the copy may use instructions that older processors do
// not have.
#pragma once

#if !defined(SAFETENSORS_VARIANT)
#error "for kernels_*.cpp only"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dequant/code_tables.hpp"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define SAFETENSORS_INLINE inline __attribute__((always_inline))
#define SAFETENSORS_INLINE_LAMBDA __attribute__((always_inline))
#define SAFETENSORS_RESTRICT __restrict__
#else
#define SAFETENSORS_INLINE inline
#define SAFETENSORS_INLINE_LAMBDA
#define SAFETENSORS_RESTRICT
#endif

namespace safetensors::weights::SAFETENSORS_VARIANT {

using I8 = std::int8_t;
using U8 = std::uint8_t;
using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;
/// Signed: compilers may then assume that loop counters do not wrap.
using Index = std::ptrdiff_t;

/// std::bit_cast, which is a template from outside.
template <typename To, typename From>
SAFETENSORS_INLINE To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// in_order() converts between little-endian and the machine's byte order.
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
SAFETENSORS_INLINE U8 in_order(U8 v) noexcept { return v; }
SAFETENSORS_INLINE U16 in_order(U16 v) noexcept { return __builtin_bswap16(v); }
SAFETENSORS_INLINE U32 in_order(U32 v) noexcept { return __builtin_bswap32(v); }
SAFETENSORS_INLINE U64 in_order(U64 v) noexcept { return __builtin_bswap64(v); }
#else
template <typename T>
SAFETENSORS_INLINE T in_order(T v) noexcept {
  return v;
}
#endif

/// Reads a little-endian number from any address.
template <typename T>
SAFETENSORS_INLINE T load(const void* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return in_order(value);
}

/// Writes eight bytes, of which the first is the lowest of `value`.
SAFETENSORS_INLINE void store_bytes(void* to, U64 value) noexcept {
  value = in_order(value);
  std::memcpy(to, &value, sizeof value);
}

SAFETENSORS_INLINE float to_float(int v) noexcept { return static_cast<float>(v); }

#if defined(__aarch64__) && defined(__GNUC__)

SAFETENSORS_INLINE float f16_to_f32(U16 half) noexcept { return bits_as<__fp16>(half); }

SAFETENSORS_INLINE U16 f32_to_f16(float value) noexcept {
  return bits_as<U16>(static_cast<__fp16>(value));
}

#else

// Layouts (IEEE 754), from the highest bit: sign, exponent, fraction.
//
//             bits   sign   exponent   fraction   bias of the exponent
//     F16      16     1        5          10        15
//     BF16     16     1        8           7       127
//     F32      32     1        8          23       127
//
// F16 to F32: the fraction moves up by 23 - 10 = 13 bits, and the exponent grows by 127 - 15 = 112,
// which is 0x38000000 at its place in an F32.

SAFETENSORS_INLINE float f16_to_f32(U16 half) noexcept {
  const U32 sign = static_cast<U32>(half & 0x8000U) << 16;
  const U32 rest = static_cast<U32>(half & 0x7FFFU) << 13;
  // Subnormal: fraction / 2^10 * 2^-14. Put below the exponent of 2^-14 (0x38800000), the fraction
  // makes (1 + fraction / 2^10) * 2^-14, and the subtraction removes the 1. All numbers involved
  // are normal: arithmetic on subnormal ones is slow on some processors.
  const float low = bits_as<float>(rest | 0x38800000U) - 0x1p-14F;
  // Normal. Infinity and NaN (exponent 31, from 0x0F800000 on) get the largest exponent of F32,
  // 255, by a second step of 112.
  const U32 high = rest + 0x38000000U + (rest >= 0x0F800000U ? 0x38000000U : 0U);
  const U32 finite = rest < 0x00800000U ? bits_as<U32>(low) : high;
  // NaNs become quiet (the fraction's top bit, 0x00400000), as F16C's instruction makes them.
  return bits_as<float>(sign | finite | (rest > 0x0F800000U ? 0x00400000U : 0U));
}

SAFETENSORS_INLINE U16 f32_to_f16(float value) noexcept {
  const U32 bits = bits_as<U32>(value);
  const U32 magnitude = bits & 0x7FFFFFFFU;
  const U32 sign = (bits >> 16) & 0x8000U;
  // Subnormal result: an F32 in [0.5, 1) has units of 2^-24, as F16's subnormal numbers have. So
  // the addition rounds to nearest even in these units, and the units are the difference to 0.5.
  const U32 low = bits_as<U32>(bits_as<float>(magnitude) + 0.5F) - 0x3F000000U;
  // Normal result: 13 bits of the fraction go. Adding half of their unit (0x1000) less 1, and the
  // lowest bit that stays, rounds to nearest even; a carry moves into the exponent.
  const U32 high = (magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  const U32 nan = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
  U32 half = magnitude < 0x38800000U ? low : high;
  half = magnitude >= 0x477FF000U ? 0x7C00U : half;  // from 65520 on: infinity
  half = magnitude > 0x7F800000U ? nan : half;
  return static_cast<U16>(sign | half);
}

#endif

SAFETENSORS_INLINE float load_f16(const U8* from) noexcept {
#if defined(__F16C__)
  return _cvtsh_ss(load<U16>(from));
#else
  return f16_to_f32(load<U16>(from));
#endif
}

/// BF16 is the upper half of F32, rounded to nearest even: adds half of the unit less 1, and the
/// lowest bit that stays.
SAFETENSORS_INLINE U16 f32_to_bf16(float value) noexcept {
  const U32 bits = bits_as<U32>(value);
  const U32 rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const U32 nan = (bits >> 16) | 0x40U;  // quiet
  return static_cast<U16>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded);
}

/// Returns 2^(code - 128), half of what an E8M0 code means. The code is the exponent of an F32 one
/// step lower; the codes 0 and 1 give subnormal numbers, 2^-128 = 0x00200000 and 2^-127. The code
/// 255, which the OCP's specification of microscaling formats makes NaN, is a number as in ggml.
SAFETENSORS_INLINE float half_of_e8m0(U32 code) noexcept {
  return bits_as<float>(code < 2 ? 0x00200000U << code : (code - 1) << 23);
}

/// Returns eight bytes: bit i of `bits` becomes the highest bit of byte i. The other bits are 0.
SAFETENSORS_INLINE U64 spread_bits(U32 bits) noexcept {
  const U64 copies = static_cast<U64>(bits & 0xFFU) * 0x0101010101010101U;
  // Byte i keeps bit i only. Adding 0x7F to it gives 0x80 or more unless it is 0, and at most 0xFF.
  return ((copies & 0x8040201008040201U) + 0x7F7F7F7F7F7F7F7FU) & 0x8080808080808080U;
}

/// E4M3 of the OCP: sign, 4 bits of exponent with a bias of 7, 3 bits of fraction. The largest code
/// is NaN; there is no infinity. Normal numbers: the fraction moves up by 23 - 3 = 20 bits, and the
/// exponent grows by 127 - 7 = 120. Subnormal ones are code * 2^-9.
SAFETENSORS_INLINE float e4m3_to_f32(U32 code) noexcept {
  const U32 magnitude = code & 0x7FU;
  const float low = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
  const U32 high = (magnitude << 20) + (120U << 23);
  U32 bits = magnitude < 8 ? bits_as<U32>(low) : high;
  bits = magnitude == 0x7F ? 0x7FC00000U : bits;
  return bits_as<float>(bits | (code & 0x80U) << 24);
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

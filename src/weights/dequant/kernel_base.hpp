// What all kernels use: loads, and conversions of single values.
//
// Files named kernel_*.hpp are compiled several times, with different instruction sets, each time
// in a namespace of its own. They must call no inline function or template from outside it: the
// linker keeps one copy of those, and it might be one that older processors cannot run.
#pragma once

#if !defined(SAFETENSORS_VARIANT)
#error "for kernels_*.cpp only"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "weights/dequant/code_tables.hpp"
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
/// Of loops, and so of places in memory.
using Index = std::ptrdiff_t;

template <typename To, typename From>
SAFETENSORS_INLINE To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

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

/// A little-endian number that may be unaligned.
template <typename T>
SAFETENSORS_INLINE T load(const void* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return in_order(value);
}

/// Eight bytes, the first from the low end.
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

SAFETENSORS_INLINE float f16_to_f32(U16 half) noexcept {
  const U32 sign = static_cast<U32>(half & 0x8000U) << 16;
  const U32 rest = static_cast<U32>(half & 0x7FFFU) << 13;
  // From subnormal on by arithmetic on normal numbers, which is fast everywhere.
  const float low = bits_as<float>(rest | 0x38800000U) - 6.103515625e-05F;
  const U32 high = rest + 0x38000000U + (rest >= 0x0F800000U ? 0x38000000U : 0U);
  const U32 finite = rest < 0x00800000U ? bits_as<U32>(low) : high;
  // F16C makes signalling NaNs quiet.
  return bits_as<float>(sign | finite | (rest > 0x0F800000U ? 0x00400000U : 0U));
}

SAFETENSORS_INLINE U16 f32_to_f16(float value) noexcept {
  const U32 bits = bits_as<U32>(value);
  const U32 magnitude = bits & 0x7FFFFFFFU;
  const U32 sign = (bits >> 16) & 0x8000U;
  // 0.5 has the unit of F16's subnormal numbers, so the addition rounds to them.
  const U32 low = bits_as<U32>(bits_as<float>(magnitude) + 0.5F) - 0x3F000000U;
  const U32 high = (magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  const U32 nan = 0x7E00U | ((magnitude >> 13) & 0x03FFU);
  U32 half = magnitude < 0x38800000U ? low : high;
  half = magnitude >= 0x477FF000U ? 0x7C00U : half;
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

SAFETENSORS_INLINE U16 f32_to_bf16(float value) noexcept {
  const U32 bits = bits_as<U32>(value);
  const U32 rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const U32 nan = (bits >> 16) | 0x40U;
  return static_cast<U16>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded);
}

/// 2^(code-128): half of what an E8M0 code means. 255, which the OCP's text on microscaling makes
/// NaN, is a number too, as in ggml.
SAFETENSORS_INLINE float half_of_e8m0(U32 code) noexcept {
  return bits_as<float>(code < 2 ? 0x00200000U << code : (code - 1) << 23);
}

/// The lowest 8 bits of `bits`, each in the highest bit of its own byte.
SAFETENSORS_INLINE U64 spread_bits(U32 bits) noexcept {
  const U64 copies = static_cast<U64>(bits & 0xFFU) * 0x0101010101010101U;
  // A byte that has its bit is at least 1, and then reaches 0x80; none overflows.
  return ((copies & 0x8040201008040201U) + 0x7F7F7F7F7F7F7F7FU) & 0x8080808080808080U;
}

/// E4M3, whose largest code is NaN.
SAFETENSORS_INLINE float e4m3_to_f32(U32 code) noexcept {
  const U32 magnitude = code & 0x7FU;
  const float low = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
  const U32 high = (magnitude << 20) + (120U << 23);
  U32 bits = magnitude < 8 ? bits_as<U32>(low) : high;
  bits = magnitude == 0x7F ? 0x7FC00000U : bits;
  return bits_as<float>(bits | (code & 0x80U) << 24);
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

// Conversion of elements of 4, 8 and 16 bits to float.
//
// Every value of these formats is exactly a float, so no conversion rounds. Infinities and the
// signs of zeros are kept. A NaN becomes a quiet NaN with the same sign bit, except that
// bf16_to_float keeps all bits. The functions for one value are constexpr and branch-free, so that
// compilers vectorise loops over them; to_float converts whole tensors.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

namespace detail {

inline constexpr std::uint32_t kQuietNan = 0x7FC00000;

/// Returns the bits of the float with the same value as a `magnitude` that is neither infinite nor
/// a NaN. A magnitude has exponent bits, then kMantissa mantissa bits, as in IEEE 754:
///
///     exponent e > 0 (normal):     2^(e - kBias) * 1.mantissa
///     exponent e = 0 (subnormal):  2^(1 - kBias) * 0.mantissa
///
/// Both cases first shift the mantissa to where a float has it:
///   - A normal number then needs float's bias, 127, in the place of its own.
///   - A subnormal number gets the exponent 1 - kBias, that of the smallest normal number. A float
///     with this exponent has a leading 1, so that number, 2^(1 - kBias) * 1.0, is subtracted.
/// No operand is a subnormal float, so processor modes that flush subnormals do not matter.
template <unsigned kMantissa, unsigned kBias>
[[nodiscard]] constexpr std::uint32_t widen(std::uint32_t magnitude) noexcept {
  constexpr std::uint32_t kSmallestNormal = (128 - kBias) << 23;
  const std::uint32_t moved = magnitude << (23 - kMantissa);
  const std::uint32_t normal = moved + ((127 - kBias) << 23);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>(moved | kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
  // A mask instead of a condition: compilers would turn a condition into a branch, and then not
  // vectorise the loop.
  const std::uint32_t mask = std::uint32_t{0} - std::uint32_t{moved < (std::uint32_t{1} << 23)};
  return (subnormal & mask) | (normal & ~mask);
}

}  // namespace detail

/// Returns the value of a BF16 element: the upper half of a float. All bits are kept.
[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// Returns the value of an F16 element (IEEE 754 binary16).
[[nodiscard]] constexpr float f16_to_float(std::uint16_t bits) noexcept {
  constexpr std::uint32_t kInfinity = 0x7C00;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  const std::uint32_t finite = detail::widen<10, 15>(magnitude);
  // The largest exponent stands for infinities and NaNs in both formats.
  const std::uint32_t special = magnitude >= kInfinity ? std::uint32_t{112} << 23 : 0;
  const std::uint32_t quiet = magnitude > kInfinity ? std::uint32_t{1} << 22 : 0;
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  return std::bit_cast<float>(sign | (finite + special) | quiet);
}

/// Returns the value of an F8_E5M2 element, which is the upper half of an F16.
[[nodiscard]] constexpr float f8_e5m2_to_float(std::uint8_t bits) noexcept {
  return f16_to_float(static_cast<std::uint16_t>(bits << 8));
}

/// Returns the value of an F8_E4M3 element: no infinities; 0x7F and 0xFF are NaN.
[[nodiscard]] constexpr float f8_e4m3_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t magnitude = bits & 0x7FU;
  const std::uint32_t sign = std::uint32_t{bits & 0x80U} << 24;
  return std::bit_cast<float>(
      sign | (magnitude == 0x7F ? detail::kQuietNan : detail::widen<3, 7>(magnitude)));
}

/// Returns the value of an F8_E4M3FNUZ element: no infinities and no negative zero; 0x80 is NaN.
[[nodiscard]] constexpr float f8_e4m3fnuz_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x80U} << 24;
  return std::bit_cast<float>(
      sign | (bits == 0x80 ? detail::kQuietNan : detail::widen<3, 8>(bits & 0x7FU)));
}

/// Returns the value of an F8_E5M2FNUZ element: no infinities and no negative zero; 0x80 is NaN.
[[nodiscard]] constexpr float f8_e5m2fnuz_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x80U} << 24;
  return std::bit_cast<float>(
      sign | (bits == 0x80 ? detail::kQuietNan : detail::widen<2, 16>(bits & 0x7FU)));
}

/// Returns the value of an F8_E8M0 element: 2 to the power bits - 127; 0xFF is NaN.
[[nodiscard]] constexpr float f8_e8m0_to_float(std::uint8_t bits) noexcept {
  constexpr std::uint32_t kTwoToMinus127 = 0x00400000;  // a subnormal float
  const std::uint32_t power = bits == 0 ? kTwoToMinus127 : std::uint32_t{bits} << 23;
  return std::bit_cast<float>(bits == 0xFF ? detail::kQuietNan : power);
}

/// Returns the value of an F4 element (E2M1) in the low four bits; the others are ignored. A byte
/// of a file holds its first element in the low half and its second in the high half (bits >> 4).
[[nodiscard]] constexpr float f4_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 8U} << 28;
  return std::bit_cast<float>(sign | detail::widen<1, 1>(bits & 7U));
}

/// Converts the elements of a tensor to float, on the calling thread. `bytes` are those of
/// `TensorView::bytes()`, of any alignment. `dtype` is F32 (copied), BF16, F16, F8_E4M3, F8_E5M2,
/// F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0 or F4.
///
/// Requires: `to` does not overlap `bytes`.
/// Throws: Error kUnsupportedDtype for other dtypes, kInvalidArgument if `to` has not one float for
///   each element.
SAFETENSORS_API void to_float(Dtype dtype, std::span<const std::byte> bytes, std::span<float> to);

}  // namespace safetensors

// Conversion of floats to elements of 8 and 16 bits: the opposite of to_float.hpp.
//
// Values are rounded to the nearest element, ties to the one whose last bit is 0, as IEEE 754 and
// torch do. A NaN becomes a NaN with the same sign bit. The functions for one value are constexpr
// and branch-free; from_float converts whole tensors. They need the processor's default rounding.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

namespace detail {

/// Returns the magnitude with kMantissa mantissa bits and the bias kBias that is nearest to a float
/// whose bits without the sign are `magnitude`: the opposite of widen(). The result may have more
/// exponent bits than the format: the caller limits it.
///
/// Normal results: the exponent gets the other bias, and the mantissa loses its last bits. Adding
/// half of what they can be, less one if the remaining mantissa is even, makes the cut round to
/// nearest even; a carry into the exponent gives the next power of two, as it should.
///
/// Subnormal results are multiples of u = 2^(1 - kBias - kMantissa). Adding a float whose last bit
/// is worth u makes the processor round to such a multiple: the last bits of the sum are its count.
///
/// Source of both: IEEE 754-2019, 3.4 and 4.3.1.
template <unsigned kMantissa, unsigned kBias>
[[nodiscard]] constexpr std::uint32_t narrow(std::uint32_t magnitude) noexcept {
  constexpr unsigned kCut = 23 - kMantissa;
  constexpr std::uint32_t kSmallestNormal = (128 - kBias) << 23;
  constexpr std::uint32_t kUnitIsLast = (151 - kBias - kMantissa) << 23;
  const std::uint32_t moved = magnitude - ((127 - kBias) << 23);
  const std::uint32_t normal =
      (moved + ((std::uint32_t{1} << (kCut - 1)) - 1) + ((moved >> kCut) & 1U)) >> kCut;
  // Larger values would overflow the sum; they are normal.
  const float small = std::bit_cast<float>(std::min(magnitude, kSmallestNormal));
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(small + std::bit_cast<float>(kUnitIsLast)) - kUnitIsLast;
  const std::uint32_t mask = std::uint32_t{0} - std::uint32_t{magnitude < kSmallestNormal};
  return (subnormal & mask) | (normal & ~mask);
}

inline constexpr std::uint32_t kFloatInfinity = 0x7F800000;

/// Returns the element nearest to a value: its sign, then a magnitude as narrow() returns it.
/// Larger magnitudes than `kMax` become `kMax`; NaNs become `kNan`.
template <typename Element, unsigned kMantissa, unsigned kBias, std::uint32_t kMax,
          std::uint32_t kNan>
[[nodiscard]] constexpr Element float_to_element(float value) noexcept {
  constexpr unsigned kCut = 32 - 8 * sizeof(Element);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t finite = std::min(narrow<kMantissa, kBias>(magnitude), kMax);
  const std::uint32_t sign = (bits & 0x80000000U) >> kCut;
  return static_cast<Element>(sign | (magnitude > kFloatInfinity ? kNan : finite));
}

}  // namespace detail

/// Returns the BF16 element nearest to a value. Values above its largest become infinite.
[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > detail::kFloatInfinity;
  return static_cast<std::uint16_t>(is_nan ? nan : rounded);
}

/// Returns the F16 element nearest to a value. Values that round to 65,536 or more become infinite.
[[nodiscard]] constexpr std::uint16_t float_to_f16(float value) noexcept {
  return detail::float_to_element<std::uint16_t, 10, 15, 0x7C00, 0x7E00>(value);
}

/// Returns the F8_E5M2 element nearest to a value. Values that round to 65,536 or more become
/// infinite.
[[nodiscard]] constexpr std::uint8_t float_to_f8_e5m2(float value) noexcept {
  return detail::float_to_element<std::uint8_t, 2, 15, 0x7C, 0x7F>(value);
}

/// Returns the F8_E4M3 element nearest to a value. The format has no infinities: larger values than
/// its largest, 448, become 448, and so do infinities, as in torch 2.13. (Older versions of torch
/// make them NaN.)
[[nodiscard]] constexpr std::uint8_t float_to_f8_e4m3(float value) noexcept {
  return detail::float_to_element<std::uint8_t, 3, 7, 0x7E, 0x7F>(value);
}

/// Converts floats to elements of a tensor, on the calling thread. `dtype` is F32 (copied), BF16,
/// F16, F8_E4M3 or F8_E5M2. `to` may have any alignment.
///
/// Requires: `to` does not overlap `values`.
/// Throws: Error kUnsupportedDtype for other dtypes, kInvalidArgument if `to` has not the bytes of
///   one element for each value.
SAFETENSORS_API void from_float(Dtype dtype, std::span<const float> values,
                                std::span<std::byte> to);

}  // namespace safetensors

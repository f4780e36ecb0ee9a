// Elements of 4, 8 and 16 bits as float.
//
// Every value of these formats is exactly a float, so no conversion rounds. Infinities and the
// signs of zeros are kept. A NaN becomes a NaN with the same sign bit, quiet but for bf16_to_float,
// which keeps all bits. The functions for one value are constexpr, branch-free and thread safe, so
// that a loop over them becomes vector code; to_float converts whole tensors.
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

/// The bits of the float that a magnitude without infinities and NaNs stands for: exponent bits,
/// then kMantissa mantissa bits, as IEEE 754 arranges them.
///
/// Moved up so that the mantissa starts where a float's does, a normal number only needs the other
/// bias. A subnormal number lacks the leading 1: it gets the exponent of the smallest normal
/// number, and with it a leading 1, which is then subtracted. No operand is a subnormal float, so
/// processor modes that flush those change nothing.
template <unsigned kMantissa, unsigned kBias>
[[nodiscard]] constexpr std::uint32_t widen(std::uint32_t magnitude) noexcept {
  constexpr std::uint32_t kSmallestNormal = (128 - kBias) << 23;
  const std::uint32_t moved = magnitude << (23 - kMantissa);
  const std::uint32_t normal = moved + ((127 - kBias) << 23);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      std::bit_cast<float>(moved | kSmallestNormal) - std::bit_cast<float>(kSmallestNormal));
  // A mask instead of a condition: compilers would compute the float only where it is needed, by a
  // branch, and then not make vector code of a loop.
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

/// Returns the value of an F4 element (E2M1), which is in the low four bits; the others are
/// ignored. The first element of a byte is in its low half, the second in its high half (bits >>
/// 4).
[[nodiscard]] constexpr float f4_to_float(std::uint8_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 8U} << 28;
  return std::bit_cast<float>(sign | detail::widen<1, 1>(bits & 7U));
}

/// Converts the elements of a tensor to float. `bytes` are the tensor's bytes as the file has them
/// (`TensorView::bytes()`), of any alignment; `to` has as many floats as there are elements, and
/// does not overlap `bytes`. Runs on the calling thread.
///
/// `dtype` is F32 (copied), BF16, F16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0 or F4.
///
/// Throws: Error kUnsupportedDtype for other dtypes, kInvalidArgument if `to` has another size.
/// Thread safety: may be called from many threads at once.
SAFETENSORS_API void to_float(Dtype dtype, std::span<const std::byte> bytes, std::span<float> to);

}  // namespace safetensors

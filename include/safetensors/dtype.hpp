// Element types of the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "safetensors/export.hpp"

namespace safetensors {

/// Element types, in the order in which a writer lays tensors out: all tensors of a type stand
/// together, the first type first (docs/format.md, "Order of tensors").
enum class Dtype : std::uint8_t {
  kU64,
  kI64,
  kF64,
  kC64,  ///< complex: two F32, real then imaginary
  kF32,
  kU32,
  kI32,
  kBF16,
  kF16,
  kU16,
  kI16,
  kF8E5M2FNUZ,
  kF8E4M3FNUZ,
  kF8E8M0,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kF6E3M2,  ///< 6 bits an element, packed
  kF6E2M3,  ///< 6 bits an element, packed
  kF4,      ///< 4 bits an element (E2M1), two to a byte, the first in the low half
  kBool,    ///< one byte an element
};

inline constexpr std::size_t kDtypeCount = 22;

/// All types, in layout order.
SAFETENSORS_API const std::array<Dtype, kDtypeCount>& all_dtypes() noexcept;

/// Bits of one element: 4, 6, 8, 16, 32 or 64. 0 for a value that is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API unsigned bit_size(Dtype dtype) noexcept;

/// The name in a file's header, as "F32" or "F8_E4M3". A NUL stands after it. Empty for a value
/// that is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(Dtype dtype) noexcept;

/// The type of a header name; nothing when there is none. Case matters.
[[nodiscard]] SAFETENSORS_API std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

}  // namespace safetensors

// Element types of the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "safetensors/export.hpp"

namespace safetensors {

/// Element types, in the order in which files are written: all tensors of the first type, then all
/// of the second, and so on (docs/format.md, "Order of tensors").
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
  kF6E3M2,  ///< 6 bits for each element, packed
  kF6E2M3,  ///< 6 bits for each element, packed
  kF4,      ///< 4 bits for each element (E2M1): two in a byte, the first in the low half
  kBool,    ///< one byte for each element
};

inline constexpr std::size_t kDtypeCount = 22;

/// Returns all types, in layout order.
SAFETENSORS_API const std::array<Dtype, kDtypeCount>& all_dtypes() noexcept;

/// Returns the bits of one element: 4, 6, 8, 16, 32 or 64; 0 if `dtype` is none of Dtype's
/// enumerators.
[[nodiscard]] SAFETENSORS_API unsigned bit_size(Dtype dtype) noexcept;

/// Returns the name in a file's header, such as "F32" or "F8_E4M3", which a NUL follows in memory.
/// Empty if `dtype` is none of Dtype's enumerators.
[[nodiscard]] SAFETENSORS_API std::string_view name(Dtype dtype) noexcept;

/// Returns the type with this name in a header; nothing if there is none. Case matters.
[[nodiscard]] SAFETENSORS_API std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

}  // namespace safetensors

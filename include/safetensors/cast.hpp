// Casts to floating-point dtypes: F64, F32, F16, BF16, F8_E4M3 and F8_E5M2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {

/// Returns whether elements can be cast to this type: see above.
[[nodiscard]] SAFETENSORS_API bool is_castable(Dtype dtype) noexcept;

/// Throws: Error kUnsupportedDtype unless both types are castable. Its text names them.
SAFETENSORS_API void check_castable(Dtype from, Dtype to);

/// Casts elements of any dtype but C64, F6_E3M2 and F6_E2M3 to a castable dtype, with torch's
/// rounding: by way of a float, to the nearest value (from_float.hpp says what becomes of values
/// that are too large). Integers become F64 directly. A cast to the same dtype copies.
///
/// Requires: `to` does not overlap `from`.
/// Throws: Error kUnsupportedDtype for other dtypes, kInvalidArgument if the spans have not the
///   same number of elements.
SAFETENSORS_API void cast_elements(Dtype from_dtype, std::span<const std::byte> from,
                                   Dtype to_dtype, std::span<std::byte> to);

/// Where copy_cast() reads a tensor, and what it writes.
struct TensorCast {
  TensorCopy copy;
  std::uint64_t count = 0;  ///< elements
  Dtype from = Dtype::kF32;
  Dtype to = Dtype::kF32;
};

/// Writes a whole tensor of a source in another dtype, a few megabytes at a time.
///
/// Throws: what check_castable, cast_elements, FileWriter::write_at and reading the source throw;
///   kFileChanged if the source has changed since it was opened.
SAFETENSORS_API void copy_cast(FileWriter& writer, const ByteSource& source,
                               const TensorCast& tensor);

}  // namespace safetensors

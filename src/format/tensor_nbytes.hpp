// The size of a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "safetensors/layout.hpp"

namespace safetensors {

/// Returns the bytes of a tensor of this dtype and shape. `name` is its name, for errors.
///
/// Throws: Error kOverflow, kMisalignedSlice.
[[nodiscard]] std::uint64_t nbytes_of(std::string_view name, Dtype dtype,
                                      std::span<const std::uint64_t> shape);

/// Checks a tensor to be written without its bytes, and returns their number.
///
/// Throws: what plan_layout() throws about a single tensor.
[[nodiscard]] std::uint64_t nbytes_of(const TensorSpec& tensor);

}  // namespace safetensors

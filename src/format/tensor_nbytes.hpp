// The size of a tensor to be written.
#pragma once

#include <cstdint>

#include "safetensors/layout.hpp"

namespace safetensors {

/// Checks a tensor without its bytes, and returns their number.
///
/// Throws: what plan_layout() throws about a single tensor.
[[nodiscard]] std::uint64_t nbytes_of(const TensorSpec& tensor);

}  // namespace safetensors

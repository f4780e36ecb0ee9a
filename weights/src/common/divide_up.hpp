// Division of sizes that rounds up: how many blocks, groups or words cover a row.
#pragma once

#include <cstdint>

namespace safetensors::weights {

/// Returns the smallest number of parts of `size` that cover `count`. Does not overflow.
///
/// Requires: size is not 0.
[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t count, std::uint64_t size) noexcept {
  return count / size + (count % size != 0 ? 1 : 0);
}

}  // namespace safetensors::weights

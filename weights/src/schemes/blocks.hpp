// Blocks of a matrix that share a scale, by the shapes of weight and scales.
#pragma once

#include <cstdint>
#include <span>

#include "common/divide_up.hpp"

namespace safetensors::weights {

/// How many rows and columns share a scale.
struct Blocks {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
};

/// Returns whether scales of this shape are one scale for all values.
[[nodiscard]] inline bool is_single(std::span<const std::uint64_t> scales) noexcept {
  return scales.empty() || (scales.size() == 1 && scales[0] == 1);
}

/// Returns the size of a block along an axis of `size` values with `scales` scales: `stated` if it
/// is not 0 and fits, else the quotient if there is one, else 0.
///
/// Requires: size is not 0.
[[nodiscard]] constexpr std::uint64_t block_along(std::uint64_t size, std::uint64_t scales,
                                                  std::uint64_t stated = 0) noexcept {
  if (scales == 0) return 0;
  if (stated != 0 && divide_up(size, stated) == scales) return stated;
  return size % scales == 0 ? size / scales : 0;
}

}  // namespace safetensors::weights

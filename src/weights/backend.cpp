#include "weights/backend.hpp"

namespace safetensors::weights {

std::uint64_t row_count(std::span<const std::int64_t> shape) noexcept {
  std::uint64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    rows *= static_cast<std::uint64_t>(shape[axis]);
  }
  return rows;
}

std::uint64_t row_length(std::span<const std::int64_t> shape) noexcept {
  return shape.empty() ? 1 : static_cast<std::uint64_t>(shape.back());
}

}  // namespace safetensors::weights

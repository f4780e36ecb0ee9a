// The units of a tensor of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/checked.hpp"
#include "patch/kernels.hpp"
#include "safetensors/dtype.hpp"

namespace safetensors::patch {

/// Returns the bytes of a type's unit: of an element, or 1 for sub-byte types.
[[nodiscard]] inline std::size_t unit_of(Dtype dtype) noexcept {
  return bit_size(dtype) < 8 ? 1 : bit_size(dtype) / 8;
}

[[nodiscard]] inline bool is_sub_byte(Dtype dtype) noexcept { return bit_size(dtype) < 8; }

/// Returns the bytes of a tensor whose elements have `bits`; nothing if they are no whole number or
/// their bits do not fit in 64.
[[nodiscard]] inline std::optional<std::uint64_t> nbytes_of(std::span<const std::uint64_t> shape,
                                                            unsigned bits) noexcept {
  const std::optional<std::uint64_t> all = checked_product(shape, bits);
  if (!all || *all % 8 != 0) return std::nullopt;
  return *all / 8;
}

[[nodiscard]] constexpr std::uint64_t blocks_of(std::uint64_t units) noexcept {
  return units / kBlockUnits + (units % kBlockUnits != 0);
}

/// Returns how many blocks make a task for a thread: 4 MiB of the tensor.
[[nodiscard]] constexpr std::size_t blocks_per_task(std::size_t unit) noexcept {
  return (std::size_t{4} << 20) / (kBlockUnits * unit);
}

}  // namespace safetensors::patch

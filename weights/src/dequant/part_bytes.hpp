// Bytes of the tensors that together store a weight.
#pragma once

#include <cstddef>
#include <cstdint>

namespace safetensors::weights {

/// Bytes of a tensor, from number `begin` on: decoders are given the rows that they need, and
/// compute offsets in the whole tensor.
struct PartBytes {
  const std::byte* bytes = nullptr;
  std::uint64_t begin = 0;

  [[nodiscard]] const std::uint8_t* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<const std::uint8_t*>(bytes) + (offset - begin);
  }
};

}  // namespace safetensors::weights

// Bytes of a tensor as stored.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace safetensors::weights {

/// Bytes, and a reference that keeps them alive.
struct StoredBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  bool is_view = false;  ///< pages of the file, not a copy
};

}  // namespace safetensors::weights

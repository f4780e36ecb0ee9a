// SHA-256 by the program's function.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "safetensors/digest.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

/// Returns SHA-256 of a text followed by bytes. Throws: Error kInvalidArgument if the program gave
/// no function; what the function throws.
[[nodiscard]] inline Digest compute_sha256(const Sha256& sha256, std::string_view start,
                                           std::span<const std::byte> bytes = {}) {
  if (!sha256) {
    fail(ErrorCode::kInvalidArgument, "a digest is SHA-256, and no function computes it");
  }
  return sha256(start, bytes);
}

}  // namespace safetensors

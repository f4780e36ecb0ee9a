// Which bytes of a copy two files can share. For this project's own sinks and bindings: it may
// change at any time.
#pragma once

#include <cstdint>

#include "safetensors/layout.hpp"

namespace safetensors::detail {

/// The bytes of a copy that are whole blocks of both files.
struct SharedBlocks {
  std::uint64_t skip = 0;    ///< the bytes of the copy that come before them
  std::uint64_t nbytes = 0;  ///< 0 if nothing can be shared
};

/// Fewer bytes are copied: that is faster than to share them.
inline constexpr std::uint64_t kLeastShared = std::uint64_t{64} << 10;

/// Returns which of `nbytes` bytes can be shared, if they are copied from offset `begin` of one
/// file to offset `to` of another. Source and copy must begin at the same offset modulo kBlockSize.
[[nodiscard]] constexpr SharedBlocks shared_blocks(std::uint64_t begin, std::uint64_t nbytes,
                                                   std::uint64_t to) noexcept {
  const std::uint64_t skip = (kBlockSize - begin % kBlockSize) % kBlockSize;
  if ((begin ^ to) % kBlockSize != 0 || nbytes < skip) return {};
  const std::uint64_t whole = (nbytes - skip) / kBlockSize * kBlockSize;
  return whole < kLeastShared ? SharedBlocks{} : SharedBlocks{skip, whole};
}

}  // namespace safetensors::detail

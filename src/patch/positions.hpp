// The positions of a block's changed units, as a record writes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "patch/kernels.hpp"
#include "patch/row.hpp"

namespace safetensors::patch {

/// Positions as bytes of a record.
struct PositionBytes {
  PositionCode code = PositionCode::kSame;
  std::size_t size = 0;
  // Room for the gaps of as many positions, and for the bytes 255 between them, of which a block
  // has at most 257.
  std::array<std::byte, kMaxPositionBytes + 512> bytes;
};

/// Writes the positions of a block of `units` by the code that takes the fewest bytes, by the first
/// of several. `differs` has them as bits, too.
///
/// Requires: at least one position; they ascend.
void write_positions(std::span<const std::uint16_t> at, const std::uint64_t* differs,
                     std::size_t units, PositionBytes& to) noexcept;

/// Makes `to` the run of all units of a block.
void write_whole_run(std::size_t units, PositionBytes& to) noexcept;

/// Writes the positions to `at`, which has kPositionRoom entries. Returns whether the bytes are
/// those of `count` ascending positions below `units`. Whatever they are, it writes nothing
/// elsewhere.
[[nodiscard]] bool read_positions(const Kernels& kernels, PositionCode code,
                                  std::span<const std::byte> bytes, std::size_t count,
                                  std::size_t units, std::uint16_t* at) noexcept;

}  // namespace safetensors::patch

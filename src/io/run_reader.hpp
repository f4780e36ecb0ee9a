// Reading the runs of a selection (ByteRuns) from a source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors::io {

/// Longest gap between wanted bytes that is read and discarded: skipping it would take another
/// read, which costs more.
inline constexpr std::uint64_t kMaxGap = std::uint64_t{64} << 10;

/// Iterates over the positions of runs, like an odometer: the last loop counts up first. Has no
/// end.
class RunCursor {
 public:
  /// Starts at run number `run`. Lifetime: refers to `runs`.
  RunCursor(const ByteRuns& runs, std::uint64_t run);
  /// Returns the position of the current run, from the tensor's first byte.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  void next() noexcept;

 private:
  const ByteRuns& runs_;
  std::vector<std::uint64_t> at_;
  std::uint64_t position_;
};

/// Returns whether read_run_block reads several runs at once, together with the gaps between them.
[[nodiscard]] bool are_read_together(const ByteRuns& runs) noexcept;

/// Reads `count` runs, from number `first_run` on, and concatenates them in `to`. `position` is the
/// offset of the tensor in the source.
/// Requires: `to` has count * runs.run_nbytes bytes.
/// Throws: what read_at throws.
void read_run_block(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
                    std::uint64_t first_run, std::uint64_t count, std::span<std::byte> to);

}  // namespace safetensors::io

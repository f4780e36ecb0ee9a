// Runs of a selection, read from a source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/slice.hpp"

namespace safetensors::io {

/// Positions of runs, counted up like an odometer.
class RunCursor {
 public:
  RunCursor(const ByteRuns& runs, std::uint64_t run);
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  void next() noexcept;

 private:
  const ByteRuns& runs_;
  std::vector<std::uint64_t> at_;
  std::uint64_t position_;
};

/// Whether neighbouring runs are read together, with the gap between them.
[[nodiscard]] bool are_read_together(const ByteRuns& runs) noexcept;

/// Reads `count` runs from `first_run` on to `to`, end to end, which has their size. `position` is
/// that of the tensor in the source.
void read_run_block(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
                    std::uint64_t first_run, std::uint64_t count, std::span<std::byte> to);

}  // namespace safetensors::io

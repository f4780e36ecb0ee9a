// Iterating over the runs of a part of a tensor (ByteRuns).
#pragma once

#include <cstdint>
#include <vector>

#include "safetensors/slice.hpp"

namespace safetensors::io {

/// Iterates over the positions of runs, like an odometer: the last loop counts up first. Has no
/// end.
///
/// Lifetime: refers to the ByteRuns.
class RunCursor {
 public:
  /// Starts at run number `run`.
  RunCursor(const ByteRuns& runs, std::uint64_t run);

  [[nodiscard]] const ByteRuns& runs() const noexcept { return runs_; }
  /// Returns the position of the current run, from the tensor's first byte.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  /// Returns where the current run goes, from the destination's first byte.
  [[nodiscard]] std::uint64_t to() const noexcept { return to_; }
  /// Returns how many runs the innermost loop still has, with the current one.
  [[nodiscard]] std::uint64_t left_in_loop() const noexcept;
  void next() noexcept { skip(1); }
  /// Moves on by `count` runs.
  ///
  /// Requires: count <= left_in_loop().
  void skip(std::uint64_t count) noexcept;

 private:
  const ByteRuns& runs_;
  std::vector<std::uint64_t> at_;
  std::uint64_t position_;
  std::uint64_t to_;
};

/// Runs that one read takes together with the gaps between them.
struct Stretch {
  std::uint64_t run_count;
  std::uint64_t begin;  ///< of the first run, from the tensor's first byte
  std::uint64_t end;    ///< of the last run
};

/// Takes runs from the cursor on: the current one, and those after it as long as the gap before
/// each is at most `gap_nbytes` and the stretch at most `limit` bytes long. Moves the cursor past
/// them.
///
/// Requires: max_runs is not 0, and the cursor has as many runs left.
[[nodiscard]] Stretch next_stretch(RunCursor& cursor, std::uint64_t max_runs,
                                   std::uint64_t gap_nbytes, std::uint64_t limit);

}  // namespace safetensors::io

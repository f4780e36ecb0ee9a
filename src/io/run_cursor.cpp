#include "io/run_cursor.hpp"

#include <algorithm>

namespace safetensors::io {

RunCursor::RunCursor(const ByteRuns& runs, std::uint64_t run)
    : runs_(runs), at_(runs.loops.size(), 0), position_(runs.first), to_(runs.to_first) {
  // The number of a run in mixed radix: its digits, the last one first, are the loops' counters.
  for (std::size_t i = runs.loops.size(); i-- > 0;) {
    const ByteRuns::Loop& loop = runs.loops[i];
    at_[i] = run % loop.count;
    run /= loop.count;
    position_ += at_[i] * loop.stride;
    to_ += at_[i] * loop.to_stride;
  }
}

std::uint64_t RunCursor::left_in_loop() const noexcept {
  return at_.empty() ? 1 : runs_.loops.back().count - at_.back();
}

void RunCursor::skip(std::uint64_t count) noexcept {
  for (std::size_t i = at_.size(); i-- > 0; count = 1) {
    const ByteRuns::Loop& loop = runs_.loops[i];
    at_[i] += count;
    position_ += count * loop.stride;
    to_ += count * loop.to_stride;
    if (at_[i] < loop.count) return;
    position_ -= at_[i] * loop.stride;
    to_ -= at_[i] * loop.to_stride;
    at_[i] = 0;
  }
}

Stretch next_stretch(RunCursor& cursor, std::uint64_t max_runs, std::uint64_t gap_nbytes,
                     std::uint64_t limit) {
  const ByteRuns& runs = cursor.runs();
  const std::uint64_t stride = runs.loops.empty() ? 0 : runs.loops.back().stride;
  const bool is_dense = stride >= runs.run_nbytes && stride - runs.run_nbytes <= gap_nbytes;
  Stretch stretch{0, cursor.position(), cursor.position()};
  while (stretch.run_count < max_runs) {
    const std::uint64_t begin = cursor.position();
    const std::uint64_t length = begin + runs.run_nbytes - stretch.begin;
    const bool fits = begin >= stretch.end && begin - stretch.end <= gap_nbytes && length <= limit;
    if (stretch.run_count != 0 && !fits) break;
    std::uint64_t count = 1;
    if (is_dense && stride != 0 && length <= limit) {
      count = std::min(
          {cursor.left_in_loop(), max_runs - stretch.run_count, (limit - length) / stride + 1});
    }
    stretch.end = begin + (count - 1) * stride + runs.run_nbytes;
    stretch.run_count += count;
    cursor.skip(count);
  }
  return stretch;
}

}  // namespace safetensors::io

#include "io/run_reader.hpp"

#include <algorithm>
#include <cstring>

#include "safetensors/buffer.hpp"

namespace safetensors::io {
namespace {

constexpr std::uint64_t kScratchSize = std::uint64_t{1} << 20;

/// Reads stretches of the source, each with as many runs as fit in the scratch buffer, and copies
/// the runs out of them:
///
///     source   ..[run]..gap..[run]..gap..[run]............[run]..
///     reads      [ one stretch, at most 1 MiB ]            [ next
///
/// `ahead` finds the end of the next stretch, `behind` the runs in the one that was read.
void read_with_gaps(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
                    std::uint64_t first_run, std::uint64_t count, std::byte* next) {
  const Buffer scratch(static_cast<std::size_t>(kScratchSize));
  RunCursor ahead(runs, first_run);
  RunCursor behind(runs, first_run);
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t begin = ahead.position();
    std::uint64_t end = begin;
    std::uint64_t taken = 0;
    while (done + taken < count) {
      const std::uint64_t run = ahead.position();
      const bool fits =
          run >= end && run - end <= kMaxGap && run + runs.run_nbytes - begin <= scratch.size();
      if (!fits) break;
      end = run + runs.run_nbytes;
      ahead.next();
      ++taken;
    }
    source.read_at(position + begin, scratch.bytes().first(static_cast<std::size_t>(end - begin)));
    for (std::uint64_t i = 0; i < taken; ++i) {
      std::memcpy(next, scratch.data() + (behind.position() - begin),
                  static_cast<std::size_t>(runs.run_nbytes));
      next += runs.run_nbytes;
      behind.next();
    }
    done += taken;
  }
}

}  // namespace

RunCursor::RunCursor(const ByteRuns& runs, std::uint64_t run)
    : runs_(runs), at_(runs.loops.size(), 0), position_(runs.first) {
  // The number of a run in mixed radix: its digits, the last one first, are the loops' counters.
  for (std::size_t i = runs.loops.size(); i-- > 0;) {
    at_[i] = run % runs.loops[i].count;
    run /= runs.loops[i].count;
    position_ += at_[i] * runs.loops[i].stride;
  }
}

void RunCursor::next() noexcept {
  for (std::size_t i = runs_.loops.size(); i-- > 0;) {
    position_ += runs_.loops[i].stride;
    if (++at_[i] < runs_.loops[i].count) return;
    position_ -= at_[i] * runs_.loops[i].stride;
    at_[i] = 0;
  }
}

bool are_read_together(const ByteRuns& runs) noexcept {
  if (runs.loops.empty()) return false;
  // The innermost loop decides: its stride is the distance between most neighbouring runs.
  const std::uint64_t stride = runs.loops.back().stride;
  return stride - runs.run_nbytes <= kMaxGap && runs.run_nbytes <= kScratchSize / 2;
}

void read_run_block(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
                    std::uint64_t first_run, std::uint64_t count, std::span<std::byte> to) {
  if (are_read_together(runs)) {
    read_with_gaps(source, position, runs, first_run, count, to.data());
    return;
  }
  RunCursor cursor(runs, first_run);
  const auto run_nbytes = static_cast<std::size_t>(runs.run_nbytes);
  for (std::size_t at = 0; at < to.size(); at += run_nbytes, cursor.next()) {
    source.read_at(position + cursor.position(), to.subspan(at, run_nbytes));
  }
}

}  // namespace safetensors::io

#include "strided_read.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/checked.hpp"
#include "io/workers.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

constexpr std::uint64_t kMostGap = std::uint64_t{64} << 10;
constexpr std::uint64_t kScratchSize = std::uint64_t{1} << 20;

/// Positions of runs, counted up like an odometer.
class RunCursor {
 public:
  RunCursor(const ByteRuns& runs, std::uint64_t run)
      : runs_(runs), at_(runs.loops.size(), 0), position_(runs.first) {
    for (std::size_t i = runs.loops.size(); i-- > 0;) {
      at_[i] = run % runs.loops[i].count;
      run /= runs.loops[i].count;
      position_ += at_[i] * runs.loops[i].stride;
    }
  }
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  void next() noexcept {
    for (std::size_t i = runs_.loops.size(); i-- > 0;) {
      position_ += runs_.loops[i].stride;
      if (++at_[i] < runs_.loops[i].count) return;
      position_ -= at_[i] * runs_.loops[i].stride;
      at_[i] = 0;
    }
  }

 private:
  const ByteRuns& runs_;
  std::vector<std::uint64_t> at_;
  std::uint64_t position_;
};

/// Runs `work(first_run, run_count)` over all runs, some of them at a time. `source`: what it
/// reads.
template <typename Work>
void for_run_blocks(const ByteRuns& runs, std::uint64_t bytes_per_run, const Work& work,
                    const Interrupt& interrupt, const ByteSource* source = nullptr) {
  const std::uint64_t count = runs.run_count();
  const std::uint64_t per_task = std::max<std::uint64_t>(1, io::kTaskSize / bytes_per_run);
  const std::uint64_t tasks = (count + per_task - 1) / per_task;
  parallel_for(
      static_cast<std::size_t>(tasks), count * bytes_per_run,
      [&](std::size_t task) {
        const std::uint64_t first = task * per_task;
        work(first, std::min(per_task, count - first));
      },
      interrupt, source == nullptr ? 0 : io::readers_of(*source, count * bytes_per_run));
}

/// Reads runs whose gaps are short: a stretch of the source at a time, then picks out the runs.
void read_with_gaps(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
                    std::span<std::byte> to, std::uint64_t first_run, std::uint64_t count) {
  const Buffer scratch(static_cast<std::size_t>(std::max(kScratchSize, runs.run_nbytes)));
  RunCursor ahead(runs, first_run);
  RunCursor behind = RunCursor(runs, first_run);
  std::byte* next = to.data() + first_run * runs.run_nbytes;
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t begin = ahead.position();
    std::uint64_t end = begin;
    std::uint64_t taken = 0;
    while (done + taken < count) {
      const std::uint64_t run = ahead.position();
      const bool fits =
          run >= end && run - end <= kMostGap && run + runs.run_nbytes - begin <= scratch.size();
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

void check_runs(const ByteRuns& runs, std::uint64_t nbytes) {
  const auto is_empty = [](const ByteRuns::Loop& loop) { return loop.count == 0; };
  if (runs.run_nbytes == 0 || std::any_of(runs.loops.begin(), runs.loops.end(), is_empty)) return;
  // Loops that a caller made himself may wrap: then their sums are no measure.
  std::optional<std::uint64_t> end = checked_add(runs.first, runs.run_nbytes);
  std::optional<std::uint64_t> total = runs.run_nbytes;
  for (const ByteRuns::Loop& loop : runs.loops) {
    const auto reach = checked_multiply(loop.count - 1, loop.stride);
    end = end && reach ? checked_add(*end, *reach) : std::nullopt;
    total = total ? checked_multiply(*total, loop.count) : std::nullopt;
  }
  if (!end || !total || *end > nbytes) {
    fail(ErrorCode::kInvalidArgument, "the selection reaches past the end of the tensor");
  }
}

std::uint64_t end_of(const ByteRuns& runs) noexcept {
  if (runs.nbytes() == 0) return 0;
  std::uint64_t end = runs.first + runs.run_nbytes;
  for (const ByteRuns::Loop& loop : runs.loops) end += (loop.count - 1) * loop.stride;
  return end;
}

void copy_runs(std::span<const std::byte> tensor, const ByteRuns& runs, std::span<std::byte> to,
               const Interrupt& interrupt) {
  if (to.empty()) return;
  if (runs.loops.empty()) {
    const CopyPiece piece{to.data(), tensor.data() + runs.first, to.size()};
    copy_all({&piece, 1}, interrupt);
    return;
  }
  for_run_blocks(
      runs, runs.run_nbytes,
      [&](std::uint64_t first, std::uint64_t count) {
        RunCursor cursor(runs, first);
        std::byte* next = to.data() + first * runs.run_nbytes;
        for (std::uint64_t i = 0; i < count; ++i, cursor.next(), next += runs.run_nbytes) {
          std::memcpy(next, tensor.data() + cursor.position(),
                      static_cast<std::size_t>(runs.run_nbytes));
        }
      },
      interrupt);
}

void read_runs(const ByteSource& source, std::uint64_t position, const ByteRuns& runs,
               std::span<std::byte> to, const Interrupt& interrupt) {
  if (to.empty()) return;
  if (runs.loops.empty()) {
    const ReadPiece piece{position + runs.first, to};
    read_all(source, {&piece, 1}, interrupt);
    return;
  }
  // The innermost loop decides: its stride is the distance of most neighbours.
  const std::uint64_t stride = runs.loops.back().stride;
  const bool together = stride - runs.run_nbytes <= kMostGap && runs.run_nbytes <= kScratchSize / 2;
  for_run_blocks(
      runs, together ? stride : runs.run_nbytes,
      [&](std::uint64_t first, std::uint64_t count) {
        if (together) {
          read_with_gaps(source, position, runs, to, first, count);
          return;
        }
        RunCursor cursor(runs, first);
        for (std::uint64_t i = first; i < first + count; ++i, cursor.next()) {
          source.read_at(position + cursor.position(),
                         to.subspan(static_cast<std::size_t>(i * runs.run_nbytes),
                                    static_cast<std::size_t>(runs.run_nbytes)));
        }
      },
      interrupt, &source);
}

}  // namespace safetensors

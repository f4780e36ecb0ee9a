#include "strided_read.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked.hpp"
#include "io/parallel.hpp"
#include "io/run_reader.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

/// Calls `work(first_run, run_count)` for blocks of runs, in parallel. `source` is what `work`
/// reads from, if anything.
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

}  // namespace

void check_runs(const ByteRuns& runs, std::uint64_t nbytes) {
  const auto is_empty = [](const ByteRuns::Loop& loop) { return loop.count == 0; };
  if (runs.run_nbytes == 0 || std::any_of(runs.loops.begin(), runs.loops.end(), is_empty)) return;
  // Callers can make loops whose sums wrap.
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
        io::RunCursor cursor(runs, first);
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
  const std::shared_ptr<const ByteSource> kept = source.keep_open();
  const ByteSource& open = kept ? *kept : source;
  for_run_blocks(
      runs, io::are_read_together(runs) ? runs.loops.back().stride : runs.run_nbytes,
      [&](std::uint64_t first, std::uint64_t count) {
        io::read_run_block(open, position, runs, first, count,
                           to.subspan(static_cast<std::size_t>(first * runs.run_nbytes),
                                      static_cast<std::size_t>(count * runs.run_nbytes)));
      },
      interrupt, &open);
}

}  // namespace safetensors

#include "open/strided_read.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/checked.hpp"
#include "io/chunk_reader.hpp"
#include "io/new_memory.hpp"
#include "io/parallel.hpp"
#include "io/read_plan.hpp"
#include "io/run_cursor.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

/// A block of runs that one task copies.
struct RunBlock {
  const ByteRuns* runs;
  std::uint64_t first;
  std::uint64_t count;
};

/// Returns where the last byte ends that the loops reach; nothing if that overflows.
std::optional<std::uint64_t> reach_of(const ByteRuns& runs, std::uint64_t first,
                                      std::uint64_t ByteRuns::Loop::* stride) {
  std::optional<std::uint64_t> end = checked_add(first, runs.run_nbytes);
  for (const ByteRuns::Loop& loop : runs.loops) {
    const auto reach = checked_multiply(loop.count - 1, loop.*stride);
    end = end && reach ? checked_add(*end, *reach) : std::nullopt;
  }
  return end;
}

/// Has the system provide memory that runs are about to fill. Each run alone may be shorter than a
/// page.
void provide(std::span<std::byte> to, std::uint64_t nbytes, const Interrupt& interrupt) {
  if (nbytes < to.size() / 2) return;  // most of it is not filled
  if (to.size() <= io::kTaskSize) return io::provide_pages(to);
  const std::size_t tasks = (to.size() + io::kTaskSize - 1) / io::kTaskSize;
  parallel_for(
      tasks, to.size(),
      [&](std::size_t i) {
        const std::span<std::byte> rest = to.subspan(i * io::kTaskSize);
        io::provide_pages(rest.first(std::min(io::kTaskSize, rest.size())));
      },
      interrupt);
}

}  // namespace

void check_runs(std::span<const ByteRuns> all, std::uint64_t nbytes, std::uint64_t to_nbytes) {
  for (const ByteRuns& runs : all) {
    const auto is_empty = [](const ByteRuns::Loop& loop) { return loop.count == 0; };
    if (runs.run_nbytes == 0 || std::any_of(runs.loops.begin(), runs.loops.end(), is_empty)) {
      continue;
    }
    // Callers can make loops whose sums wrap.
    std::optional<std::uint64_t> total = runs.run_nbytes;
    for (const ByteRuns::Loop& loop : runs.loops) {
      total = total ? checked_multiply(*total, loop.count) : std::nullopt;
    }
    const auto end = reach_of(runs, runs.first, &ByteRuns::Loop::stride);
    if (!end || !total || *end > nbytes) {
      fail(ErrorCode::kInvalidArgument, "the selection reaches past the end of the tensor");
    }
    const auto to_end = reach_of(runs, runs.to_first, &ByteRuns::Loop::to_stride);
    if (!to_end || *to_end > to_nbytes) {
      fail(ErrorCode::kInvalidArgument, "the selection reaches past the end of its destination");
    }
  }
}

std::uint64_t end_of(std::span<const ByteRuns> all) noexcept {
  std::uint64_t end = 0;
  for (const ByteRuns& runs : all) {
    if (runs.nbytes() == 0) continue;
    end = std::max(end, reach_of(runs, runs.first, &ByteRuns::Loop::stride).value_or(0));
  }
  return end;
}

std::uint64_t to_end_of(std::span<const ByteRuns> all) noexcept {
  std::uint64_t end = 0;
  for (const ByteRuns& runs : all) {
    if (runs.nbytes() == 0) continue;
    end = std::max(end, reach_of(runs, runs.to_first, &ByteRuns::Loop::to_stride).value_or(0));
  }
  return end;
}

void copy_runs(std::span<const std::byte> tensor, std::span<const ByteRuns> all,
               std::span<std::byte> to, const Interrupt& interrupt) {
  if (all.size() == 1 && all.front().loops.empty()) {
    const ByteRuns& runs = all.front();
    const CopyPiece piece{to.data() + runs.to_first, tensor.data() + runs.first,
                          static_cast<std::size_t>(runs.run_nbytes)};
    if (piece.nbytes != 0) copy_all({&piece, 1}, interrupt);
    return;
  }
  provide(to, nbytes_of(all), interrupt);
  std::vector<RunBlock> blocks;
  for (const ByteRuns& runs : all) {
    if (runs.nbytes() == 0) continue;
    const std::uint64_t count = runs.run_count();
    const std::uint64_t per_task = std::max<std::uint64_t>(1, io::kTaskSize / runs.run_nbytes);
    for (std::uint64_t first = 0; first < count; first += per_task) {
      blocks.push_back({&runs, first, std::min(per_task, count - first)});
    }
  }
  parallel_for(
      blocks.size(), nbytes_of(all),
      [&](std::size_t task) {
        const RunBlock& block = blocks[task];
        const auto nbytes = static_cast<std::size_t>(block.runs->run_nbytes);
        io::RunCursor cursor(*block.runs, block.first);
        for (std::uint64_t i = 0; i < block.count; ++i, cursor.next()) {
          std::memcpy(to.data() + cursor.to(), tensor.data() + cursor.position(), nbytes);
        }
      },
      interrupt);
}

void read_runs(const ByteSource& source, std::uint64_t position, std::span<const ByteRuns> all,
               std::span<std::byte> to, const Interrupt& interrupt) {
  if (all.size() == 1 && all.front().loops.empty()) {
    const ByteRuns& runs = all.front();
    const ReadPiece piece{position + runs.first,
                          to.subspan(static_cast<std::size_t>(runs.to_first),
                                     static_cast<std::size_t>(runs.run_nbytes))};
    read_all(source, {&piece, 1}, interrupt);
    return;
  }
  provide(to, nbytes_of(all), interrupt);
  const std::shared_ptr<const ByteSource> kept = source.keep_open();
  const ByteSource& open = kept ? *kept : source;
  const io::PlannedSource planned = io::planned(open, io::kTaskSize);
  io::ReadPlan plan;
  for (const ByteRuns& runs : all) {
    if (runs.nbytes() != 0) {
      plan.add(0, 0, position, io::address_of(to.data()), runs, planned.cost);
    }
  }
  plan.plan({&planned, 1});
  io::read_plan(open, plan, nbytes_of(all), interrupt);
}

}  // namespace safetensors

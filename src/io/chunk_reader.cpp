#include "io/chunk_reader.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/file_source.hpp"
#include "io/new_memory.hpp"
#include "io/parallel.hpp"
#include "io/run_cursor.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::io {
namespace {

// A request's answer is copied run by run if its runs are at least as long: a ReadPiece for each
// takes 24 bytes.
constexpr std::uint64_t kMinPartRun = 64;

// From the page cache, a gap of this size takes longer to copy than another read() to begin.
constexpr std::uint64_t kCachedGap = 4096;

std::span<std::byte> memory_at(std::uint64_t address, std::uint64_t nbytes) noexcept {
  return {static_cast<std::byte*>(pointer_of(address)), static_cast<std::size_t>(nbytes)};
}

std::span<std::byte> first(Buffer& scratch, std::uint64_t nbytes) {
  if (scratch.size() < nbytes) {
    scratch = Buffer(static_cast<std::size_t>(std::max(nbytes, kScratchSize)));
  }
  return scratch.bytes().first(static_cast<std::size_t>(nbytes));
}

void read_pieces(const ByteSource& source, const ReadPlan& plan, const Chunk& chunk, bool in_one,
                 Buffer& scratch) {
  std::vector<ReadPiece> parts;
  bool has_short = false;
  for (std::size_t i = chunk.first_piece; i < chunk.last_piece; ++i) {
    const ChunkPart part = part_of(plan.pieces[i], chunk);
    if (part.nbytes == 0) continue;
    const std::span<std::byte> to = memory_at(part.to, part.nbytes);
    provide_pages(to);
    parts.push_back({chunk.offset + part.from, to});
    has_short |= part.nbytes < kShortPiece;
  }
  if (!in_one || !has_short || parts.size() < 2) {
    source.read_parts(chunk.offset, chunk.nbytes, parts);
    return;
  }
  const std::span<std::byte> all = first(scratch, chunk.nbytes);
  source.read_at(chunk.offset, all);
  copy_parts(chunk.offset, all, parts);
}

/// Returns whether the gaps of a stretch of several runs are not worth reading.
bool is_sparse(const FileSource& file, std::uint64_t offset, const Stretch& stretch,
               const ByteRuns& runs) noexcept {
  const std::uint64_t nbytes = stretch.end - stretch.begin;
  const std::uint64_t gaps = nbytes - stretch.run_count * runs.run_nbytes;
  return gaps / (stretch.run_count - 1) >= kCachedGap && file.is_cached(offset, nbytes);
}

/// Reads runs in stretches. `place(cursor)` returns where the current run goes; it is called once
/// for each run, in their order.
template <typename Place>
void read_runs(const ByteSource& source, const RunPiece& piece, const RunChunk& chunk,
               const Place& place, Buffer& scratch) {
  const ByteRuns& runs = piece.runs;
  const ReadCost cost = source.cost();
  const bool in_parts = cost.is_request && runs.run_nbytes >= kMinPartRun;
  const auto* const file = dynamic_cast<const FileSource*>(&source);
  RunCursor ahead(runs, chunk.first_run);
  RunCursor behind(runs, chunk.first_run);
  std::vector<ReadPiece> parts;
  for (std::uint64_t left = chunk.count; left > 0;) {
    const Stretch stretch = next_stretch(ahead, left, cost.gap_nbytes, max_stretch(cost));
    left -= stretch.run_count;
    const std::uint64_t offset = piece.position + stretch.begin;
    const std::uint64_t nbytes = stretch.end - stretch.begin;
    if (stretch.run_count == 1 || (file != nullptr && is_sparse(*file, offset, stretch, runs))) {
      for (std::uint64_t i = 0; i < stretch.run_count; ++i, behind.next()) {
        source.read_at(piece.position + behind.position(), place(behind));
      }
      continue;
    }
    parts.clear();
    std::span<std::byte> all;
    if (!in_parts) {
      all = first(scratch, nbytes);
      source.read_at(offset, all);
    }
    for (std::uint64_t i = 0; i < stretch.run_count; ++i, behind.next()) {
      const std::span<std::byte> to = place(behind);
      if (in_parts) {
        parts.push_back({piece.position + behind.position(), to});
      } else {
        std::memcpy(to.data(), all.data() + (behind.position() - stretch.begin), to.size());
      }
    }
    if (in_parts) source.read_parts(offset, nbytes, parts);
  }
}

}  // namespace

void copy_parts(std::uint64_t offset, std::span<const std::byte> bytes,
                std::span<const ReadPiece> parts) noexcept {
  for (const ReadPiece& part : parts) {
    if (part.to.empty()) continue;
    std::memcpy(part.to.data(), bytes.data() + (part.offset - offset), part.to.size());
  }
}

void read_chunk(const ByteSource& source, const ReadPlan& plan, std::size_t number, bool in_one,
                Buffer& scratch) {
  if (number < plan.chunks.size()) {
    read_pieces(source, plan, plan.chunks[number], in_one, scratch);
    return;
  }
  const RunChunk& chunk = plan.run_chunks[number - plan.chunks.size()];
  const RunPiece& piece = plan.run_pieces[chunk.piece];
  const auto place = [&](const RunCursor& cursor) {
    return memory_at(piece.to + cursor.to(), piece.runs.run_nbytes);
  };
  read_runs(source, piece, chunk, place, scratch);
}

void read_concatenated(const ByteSource& source, const RunPiece& piece, const RunChunk& chunk,
                       std::span<std::byte> to, Buffer& scratch) {
  const auto run_nbytes = static_cast<std::size_t>(piece.runs.run_nbytes);
  const auto place = [&](const RunCursor&) {
    const std::span<std::byte> run = to.first(run_nbytes);
    to = to.subspan(run_nbytes);
    return run;
  };
  read_runs(source, piece, chunk, place, scratch);
}

void read_plan(const ByteSource& source, const ReadPlan& plan, std::uint64_t nbytes,
               const Interrupt& interrupt) {
  parallel_for(
      plan.chunk_count(), nbytes,
      [&](std::size_t i) {
        Buffer scratch;
        read_chunk(source, plan, i, false, scratch);
      },
      interrupt, readers_of(source, nbytes));
}

PlannedSource planned(const ByteSource& source, std::uint64_t chunk_nbytes) {
  PlannedSource planned{.nbytes = source.size(), .cost = source.cost(), .source = &source};
  if (planned.cost.chunk_nbytes == 0) planned.cost.chunk_nbytes = chunk_nbytes;
  // A longer one would let a chunk end before it begins.
  planned.cost.alignment =
      std::clamp<std::uint64_t>(planned.cost.alignment, 1, planned.cost.chunk_nbytes);
  if (planned.cost.is_request) planned.max_nbytes = planned.cost.chunk_nbytes;
  return planned;
}

}  // namespace safetensors::io

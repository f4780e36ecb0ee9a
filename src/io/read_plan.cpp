#include "io/read_plan.hpp"

#include <algorithm>
#include <tuple>

#include "io/run_cursor.hpp"

namespace safetensors::io {
namespace {

// Bytes of one source before the next has its turn: long enough for a disk to read ahead.
constexpr std::uint64_t kTurn = std::uint64_t{64} << 20;
// From this size on, each run is worth a separate copy to the device.
constexpr std::uint64_t kMinPieceRun = std::uint64_t{256} << 10;
// So few runs take little memory as pieces, which share reads with those of other tensors.
constexpr std::uint64_t kFewRuns = 8;

std::uint64_t end_of(const Piece& piece) noexcept { return piece.offset + piece.nbytes; }

std::uint64_t align_down(std::uint64_t value, const ReadCost& cost) noexcept {
  return value / cost.alignment * cost.alignment;
}

/// Returns the next chunk of a source, whose pieces are [first, last). `done` is the end of the
/// chunk before it.
Chunk next_chunk(std::span<const Piece> pieces, std::size_t first, std::size_t last,
                 std::uint64_t done, const PlannedSource& source) {
  const ReadCost& cost = source.cost;
  const std::uint64_t begin = std::max(done, pieces[first].offset);
  const std::uint64_t offset = align_down(begin, cost);
  std::uint64_t limit = std::min(source.nbytes - offset, cost.chunk_nbytes) + offset;
  std::uint64_t gap = cost.gap_nbytes;
  if (cost.is_checked) {
    const std::uint64_t most = std::min(source.nbytes - offset, source.max_nbytes) + offset;
    limit = std::min(source.source->divide(begin, limit), most);
    // A damaged tensor in a gap is none of those that are loaded. Requests leave gaps out later.
    if (!cost.is_request) gap = 0;
  }
  std::uint64_t end = begin;
  std::size_t i = first;
  for (; i < last && pieces[i].offset < limit; ++i) {
    if (pieces[i].offset > end && pieces[i].offset - end > gap) break;
    end = std::max(end, std::min(end_of(pieces[i]), limit));
  }
  // Direct I/O needs whole blocks, except at the end of the file; other reads are not slower.
  const std::uint64_t rounded = align_down(end + cost.alignment - 1, cost);
  return {pieces[first].source, offset, std::min(rounded, limit) - offset, begin, first, i};
}

/// Sorts the pieces by source and offset, and returns their chunks.
std::vector<Chunk> plan_pieces(std::vector<Piece>& pieces, std::span<const PlannedSource> sources) {
  const auto place = [](const Piece& piece) { return std::tie(piece.source, piece.offset); };
  const auto before = [&](const Piece& a, const Piece& b) { return place(a) < place(b); };
  if (!std::is_sorted(pieces.begin(), pieces.end(), before)) {
    std::stable_sort(pieces.begin(), pieces.end(), before);
  }
  // Chunks of one turn, of all sources, come before those of the next turn.
  struct Keyed {
    std::uint64_t turn;
    Chunk chunk;
  };
  std::vector<Keyed> keyed;
  for (std::size_t first = 0; first < pieces.size();) {
    const std::uint32_t source = pieces[first].source;
    const std::size_t last = static_cast<std::size_t>(
        std::partition_point(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end(),
                             [&](const Piece& piece) { return piece.source == source; }) -
        pieces.begin());
    std::uint64_t done = 0;
    std::uint64_t planned = 0;
    while (first < last) {
      const Chunk chunk = next_chunk(pieces, first, last, done, sources[source]);
      keyed.push_back({planned / kTurn, chunk});
      planned += chunk.nbytes;
      done = chunk.offset + chunk.nbytes;
      while (first < last && end_of(pieces[first]) <= done) ++first;
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const Keyed& a, const Keyed& b) { return a.turn < b.turn; });
  std::vector<Chunk> chunks;
  chunks.reserve(keyed.size());
  for (const Keyed& each : keyed) chunks.push_back(each.chunk);
  return chunks;
}

/// Returns whether each run is a piece of its own.
bool are_pieces(const ByteRuns& runs, const ReadCost& cost) noexcept {
  return runs.loops.empty() || runs.run_nbytes >= std::min(kMinPieceRun, cost.chunk_nbytes) ||
         runs.run_count() <= kFewRuns;
}

/// Appends the chunks of the RunPiece with this index.
void plan_runs(const RunPiece& piece, std::size_t index, const ReadCost& cost,
               std::vector<RunChunk>& chunks) {
  const std::uint64_t count = piece.runs.run_count();
  RunCursor cursor(piece.runs, 0);
  for (std::uint64_t first = 0; first < count;) {
    RunChunk chunk{index, first, 0};
    std::uint64_t nbytes = 0;
    do {
      const Stretch stretch = next_stretch(cursor, count - first - chunk.count, cost.gap_nbytes,
                                           cost.chunk_nbytes - nbytes);
      chunk.count += stretch.run_count;
      nbytes += stretch.end - stretch.begin;
    } while (!cost.is_request && first + chunk.count < count &&
             nbytes + piece.runs.run_nbytes <= cost.chunk_nbytes);
    chunks.push_back(chunk);
    first += chunk.count;
  }
}

}  // namespace

ChunkPart part_of(const Piece& piece, const Chunk& chunk) noexcept {
  const std::uint64_t begin = std::max(piece.offset, chunk.begin);
  const std::uint64_t end = std::min(end_of(piece), chunk.offset + chunk.nbytes);
  if (begin >= end) return {0, 0, 0};
  return {begin - chunk.offset, end - begin, piece.to + (begin - piece.offset)};
}

void ReadPlan::add(std::uint32_t source, std::uint32_t tensor, std::uint64_t position,
                   std::uint64_t to, const ByteRuns& runs, const ReadCost& cost) {
  if (!are_pieces(runs, cost)) {
    run_pieces.push_back({source, tensor, position, to, runs});
    return;
  }
  RunCursor cursor(runs, 0);
  for (std::uint64_t left = runs.run_count(); left > 0; --left, cursor.next()) {
    pieces.push_back(
        {source, tensor, position + cursor.position(), runs.run_nbytes, to + cursor.to()});
  }
}

void ReadPlan::plan(std::span<const PlannedSource> sources) {
  chunks = plan_pieces(pieces, sources);
  for (std::size_t i = 0; i < run_pieces.size(); ++i) {
    plan_runs(run_pieces[i], i, sources[run_pieces[i].source].cost, run_chunks);
  }
}

}  // namespace safetensors::io

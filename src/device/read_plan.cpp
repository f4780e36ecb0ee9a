#include "device/read_plan.hpp"

#include <algorithm>
#include <tuple>

#include "io/run_reader.hpp"

namespace safetensors::device {
namespace {

// Bytes of one source before the next has its turn: long enough for a disk to read ahead.
constexpr std::uint64_t kTurn = std::uint64_t{64} << 20;
// From this size on, each run is worth a separate copy to the device.
constexpr std::uint64_t kMinPieceRun = std::uint64_t{256} << 10;

std::uint64_t end_of(const Piece& piece) noexcept { return piece.offset + piece.nbytes; }

std::uint64_t align_down(std::uint64_t value) noexcept {
  return value / kReadAlignment * kReadAlignment;
}

/// Returns the next chunk of a source, whose pieces are [first, last). `done` is the end of the
/// chunk before it.
Chunk next_chunk(std::span<const Piece> pieces, std::size_t first, std::size_t last,
                 std::uint64_t done, std::uint64_t source_nbytes, std::uint64_t chunk_nbytes) {
  const std::uint64_t begin = std::max(done, pieces[first].offset);
  const std::uint64_t offset = align_down(begin);
  const std::uint64_t limit = std::min(source_nbytes - offset, chunk_nbytes) + offset;
  std::uint64_t end = begin;
  std::size_t i = first;
  for (; i < last && pieces[i].offset < limit; ++i) {
    if (pieces[i].offset > end && pieces[i].offset - end > io::kMaxGap) break;
    end = std::max(end, std::min(end_of(pieces[i]), limit));
  }
  // Direct I/O needs whole blocks, except at the end of the file; other reads are not slower.
  const std::uint64_t rounded = align_down(end + kReadAlignment - 1);
  return {pieces[first].source, offset, std::min(rounded, limit) - offset, begin, first, i};
}

}  // namespace

ChunkPart part_of(const Piece& piece, const Chunk& chunk) noexcept {
  const std::uint64_t begin = std::max(piece.offset, chunk.begin);
  const std::uint64_t end = std::min(end_of(piece), chunk.offset + chunk.nbytes);
  if (begin >= end) return {0, 0, 0};
  return {begin - chunk.offset, end - begin, piece.to + (begin - piece.offset)};
}

std::vector<Chunk> plan_chunks(std::vector<Piece>& pieces,
                               std::span<const std::uint64_t> source_nbytes,
                               std::uint64_t chunk_nbytes) {
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
      const Chunk chunk =
          next_chunk(pieces, first, last, done, source_nbytes[source], chunk_nbytes);
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

void plan_run_chunks(const RunPiece& piece, std::size_t index, std::uint64_t chunk_nbytes,
                     std::vector<RunChunk>& chunks) {
  const std::uint64_t count = piece.runs.run_count();
  const std::uint64_t per_chunk =
      std::max<std::uint64_t>(1, chunk_nbytes / std::max<std::uint64_t>(1, piece.runs.run_nbytes));
  for (std::uint64_t first = 0; first < count; first += per_chunk) {
    chunks.push_back({index, first, std::min(per_chunk, count - first)});
  }
}

bool are_pieces(const ByteRuns& runs, std::uint64_t chunk_nbytes) noexcept {
  return runs.loops.empty() || runs.run_nbytes >= std::min(kMinPieceRun, chunk_nbytes);
}

}  // namespace safetensors::device

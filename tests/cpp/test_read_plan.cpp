#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "io/read_plan.hpp"
#include "safetensors/slice.hpp"

namespace {

using safetensors::io::Chunk;
using safetensors::io::part_of;
using safetensors::io::Piece;
using safetensors::io::PlannedSource;
using safetensors::io::ReadPlan;

constexpr std::uint64_t kBlock = 4096;

/// Sorts the pieces, as plans do, and returns their chunks.
std::vector<Chunk> plan_chunks(std::vector<Piece>& pieces, std::span<const std::uint64_t> sizes,
                               std::uint64_t chunk_nbytes) {
  std::vector<PlannedSource> sources;
  for (const std::uint64_t size : sizes) {
    sources.push_back({size, {.chunk_nbytes = chunk_nbytes}});
  }
  ReadPlan plan;
  plan.pieces = pieces;
  plan.plan(sources);
  pieces = plan.pieces;
  return plan.chunks;
}

/// Checks the properties of every plan: byte by byte if there are few pieces, else by sums.
void check_plan(const std::vector<Piece>& pieces, const std::vector<Chunk>& chunks,
                std::span<const std::uint64_t> sizes, std::uint64_t chunk_nbytes) {
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> parts(pieces.size());
  std::map<std::uint32_t, std::uint64_t> reached;
  for (const Chunk& chunk : chunks) {
    CHECK(chunk.offset % kBlock == 0);
    CHECK(chunk.nbytes > 0);
    CHECK(chunk.nbytes <= chunk_nbytes);
    CHECK(chunk.offset + chunk.nbytes <= sizes[chunk.source]);
    const bool is_whole = chunk.nbytes % kBlock == 0;
    CHECK((is_whole || chunk.offset + chunk.nbytes == sizes[chunk.source]));
    CHECK(chunk.begin >= reached[chunk.source]);  // ascending, and no byte wanted twice
    reached[chunk.source] = chunk.offset + chunk.nbytes;
    std::uint64_t wanted = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].source != chunk.source) continue;
      const auto part = part_of(pieces[i], chunk);
      if (part.nbytes == 0) continue;
      // A part outside the chunk's range of pieces would never be copied.
      CHECK(i >= chunk.first_piece);
      CHECK(i < chunk.last_piece);
      const std::uint64_t at = part.to - pieces[i].to;
      CHECK(chunk.offset + part.from == pieces[i].offset + at);
      parts[i].push_back({at, at + part.nbytes});
      wanted += part.nbytes;
    }
    CHECK(wanted > 0);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::ranges::sort(parts[i]);
    std::uint64_t end = 0;
    for (const auto& [from, to] : parts[i]) {
      CHECK(from == end);
      end = to;
    }
    CHECK(end == pieces[i].nbytes);
  }
}

Piece piece(std::uint64_t offset, std::uint64_t nbytes, std::uint32_t source = 0) {
  return {source, 0, offset, nbytes, 0x1000'0000 + offset};
}

}  // namespace

TEST_CASE("neighbours share a chunk, and a piece longer than a chunk has several") {
  std::vector<Piece> pieces = {piece(100, 50), piece(150, 3 * kBlock), piece(150 + 3 * kBlock, 1)};
  const std::uint64_t size = 100 * kBlock;
  CHECK(plan_chunks(pieces, {&size, 1}, 100 * kBlock).size() == 1);
  const auto chunks = plan_chunks(pieces, {&size, 1}, kBlock);
  CHECK(chunks.size() == 4);
  check_plan(pieces, chunks, {&size, 1}, kBlock);
}

TEST_CASE("a short gap is read over, a long one is not") {
  const std::uint64_t size = std::uint64_t{1} << 30;
  std::vector<Piece> near = {piece(0, 10), piece(60'000, 10)};
  CHECK(plan_chunks(near, {&size, 1}, 1 << 20).size() == 1);
  std::vector<Piece> far = {piece(0, 10), piece(80'000, 10)};
  const auto chunks = plan_chunks(far, {&size, 1}, 1 << 20);
  REQUIRE(chunks.size() == 2);
  CHECK(chunks[0].nbytes == kBlock);
  CHECK(chunks[1].offset == 80'000 / kBlock * kBlock);
}

TEST_CASE("files take turns") {
  constexpr std::uint64_t kLong = std::uint64_t{256} << 20;
  std::vector<Piece> pieces = {piece(0, kLong, 0), piece(0, kLong, 1)};
  const std::vector<std::uint64_t> sizes = {kLong, kLong};
  const auto chunks = plan_chunks(pieces, sizes, std::uint64_t{4} << 20);
  check_plan(pieces, chunks, sizes, std::uint64_t{4} << 20);
  std::size_t changes = 0;
  for (std::size_t i = 1; i < chunks.size(); ++i) {
    changes += static_cast<std::size_t>(chunks[i].source != chunks[i - 1].source);
  }
  CHECK(changes == 7);  // 64 MiB at a time
}

TEST_CASE("the last chunk ends with the file") {
  const std::uint64_t size = 2 * kBlock + 77;
  std::vector<Piece> pieces = {piece(1, size - 1)};
  for (const std::uint64_t chunk : {kBlock, 2 * kBlock, 64 * kBlock}) {
    const auto chunks = plan_chunks(pieces, {&size, 1}, chunk);
    check_plan(pieces, chunks, {&size, 1}, chunk);
  }
}

TEST_CASE("without pieces there are no chunks") {
  std::vector<Piece> none;
  CHECK(plan_chunks(none, {}, kBlock).empty());
}

TEST_CASE("random pieces are covered, also if they overlap") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i <= below(3); ++i) sizes.push_back(1 + below(40 * kBlock));
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < 1 + below(40); ++i) {
      const auto source = static_cast<std::uint32_t>(below(sizes.size()));
      const std::uint64_t offset = below(sizes[source]);
      const std::uint64_t most = std::min<std::uint64_t>(sizes[source] - offset, 3 * kBlock);
      pieces.push_back(piece(offset, 1 + below(most), source));
    }
    const bool may_overlap = seed % 2 == 0;
    if (!may_overlap) {
      std::ranges::sort(pieces, {}, [](const Piece& p) { return std::pair(p.source, p.offset); });
      std::vector<Piece> apart;
      for (const Piece& each : pieces) {
        const bool follows = !apart.empty() && apart.back().source == each.source;
        if (!follows || apart.back().offset + apart.back().nbytes <= each.offset) {
          apart.push_back(each);
        }
      }
      pieces = apart;
    }
    const std::uint64_t chunk = kBlock * (1 + below(5));
    const auto chunks = plan_chunks(pieces, sizes, chunk);
    check_plan(pieces, chunks, sizes, chunk);
  }
}

TEST_CASE("runs are cut between runs") {
  const safetensors::ByteRuns runs{.first = 8, .run_nbytes = 100, .loops = {{7, 5000}, {11, 200}}};
  ReadPlan plan;
  const std::vector<PlannedSource> sources = {{1 << 20, {.gap_nbytes = 100, .chunk_nbytes = 1000}}};
  plan.add(0, 0, 0, 0x1000, runs, sources[0].cost);
  plan.plan(sources);
  std::uint64_t next = 0;
  for (const auto& chunk : plan.run_chunks) {
    CHECK(chunk.piece == 0);
    CHECK(chunk.first_run == next);
    CHECK(chunk.count * 100 <= 1000);
    next += chunk.count;
  }
  CHECK(next == 77);
  CHECK(plan.chunks.empty());
}

TEST_CASE("of a server, each stretch of runs is a chunk") {
  const safetensors::ByteRuns runs{.first = 0, .run_nbytes = 100, .loops = {{4, 5000}, {10, 200}}};
  const auto chunks_of = [&](std::uint64_t gap, bool is_request) {
    ReadPlan plan;
    const std::vector<PlannedSource> sources = {
        {1 << 20, {.gap_nbytes = gap, .chunk_nbytes = 1 << 19, .is_request = is_request}}};
    plan.add(0, 0, 0, 0x1000, runs, sources[0].cost);
    plan.plan(sources);
    return plan.run_chunks.size();
  };
  CHECK(chunks_of(100, true) == 4);  // the rows are 3100 bytes apart
  CHECK(chunks_of(99, true) == 40);
  CHECK(chunks_of(3100, true) == 1);
  CHECK(chunks_of(99, false) == 1);  // one reader reads them one after the other
}

TEST_CASE("long or few runs are pieces, which share reads with other tensors") {
  const std::vector<PlannedSource> sources = {{1 << 30, {.chunk_nbytes = 1 << 20}}};
  const auto piece_count = [&](const safetensors::ByteRuns& runs) {
    ReadPlan plan;
    plan.add(0, 0, 0, 0x1000, runs, sources[0].cost);
    return plan.pieces.size();
  };
  CHECK(piece_count({.run_nbytes = 100, .loops = {{100, 5000}}}) == 0);
  CHECK(piece_count({.run_nbytes = 1 << 18, .loops = {{100, 1 << 19}}}) == 100);
  CHECK(piece_count({.run_nbytes = 100, .loops = {{8, 5000}}}) == 8);
  CHECK(piece_count({.run_nbytes = 100, .loops = {}}) == 1);
}

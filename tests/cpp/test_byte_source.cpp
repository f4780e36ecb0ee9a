#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include "fake_source.hpp"
#include "io/parallel.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "support.hpp"

using safetensors::copy_all;
using safetensors::CopyPiece;
using safetensors::read_all;
using safetensors::ReadPiece;
using safetensors::io::kTaskSize;

namespace {

/// Cuts `nbytes` into pieces of the given sizes, over and over.
std::vector<std::size_t> cut(std::size_t nbytes, const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> pieces;
  for (std::size_t i = 0; nbytes > 0; ++i) {
    pieces.push_back(std::min(sizes[i % sizes.size()], nbytes));
    nbytes -= pieces.back();
  }
  return pieces;
}

void check_copy(const std::vector<std::size_t>& sizes) {
  std::size_t nbytes = 0;
  for (const std::size_t size : sizes) nbytes += size;
  const std::vector<std::byte> from = test::pattern(nbytes);
  std::vector<std::byte> to(nbytes + 1);
  std::vector<CopyPiece> pieces;
  std::size_t at = 0;
  for (const std::size_t size : sizes) {
    pieces.push_back({to.data() + at, from.data() + at, size});
    at += size;
  }
  copy_all(pieces);
  CHECK(std::equal(from.begin(), from.end(), to.begin()));
  CHECK(to.back() == std::byte{0});
}

/// Reads pieces of the given sizes, `gap` bytes between them, and compares.
void check_read(const std::vector<std::size_t>& sizes, std::size_t gap) {
  std::size_t nbytes = 1;
  for (const std::size_t size : sizes) nbytes += size + gap;
  const test::FakeSource source(test::pattern(nbytes));
  std::vector<std::vector<std::byte>> to;
  for (const std::size_t size : sizes) to.emplace_back(size);
  std::vector<ReadPiece> pieces;
  std::size_t at = 1;
  for (std::vector<std::byte>& piece : to) {
    pieces.push_back({at, piece});
    at += piece.size() + gap;
  }
  read_all(source, pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto* const wanted = source.bytes().data() + pieces[i].offset;
    if (!std::equal(to[i].begin(), to[i].end(), wanted)) FAIL("piece ", i);
  }
  std::size_t wanted = 0;
  for (const std::size_t size : sizes) wanted += size;
  CHECK(source.nbytes_read() >= wanted);
  CHECK(source.nbytes_read() <= wanted + gap * sizes.size());  // short gaps are read as well
}

const std::vector<std::vector<std::size_t>> kSizes = {
    {},
    {0},
    {1},
    {0, 0, 5, 0, 0},
    {kTaskSize - 1},
    {kTaskSize},
    {kTaskSize + 1},
    {kTaskSize, kTaskSize},
    {kTaskSize - 1, 2, kTaskSize + 1},
    {0, kTaskSize, 0, kTaskSize, 0},
    {3 * kTaskSize + 7, 1, 0, 5},
    {1, 3 * kTaskSize, 1},
    {(256U << 10) - 1, 256U << 10, (256U << 10) + 1, 3, (1U << 20) - 1, 1U << 20},
};

}  // namespace

TEST_CASE("copies of odd sizes") {
  for (const auto& sizes : kSizes) check_copy(sizes);
  check_copy(cut(3 * kTaskSize, {37}));
  check_copy(cut(5 * kTaskSize + 3, {1, 1000, 0, 70'001, 13, kTaskSize + 1, 2}));
}

TEST_CASE("reads of odd sizes read each byte once") {
  for (const auto& sizes : kSizes) {
    check_read(sizes, 0);
    check_read(sizes, 3);
  }
  check_read(cut(kTaskSize, {37}), 0);
  check_read(cut(5 * kTaskSize + 3, {1, 1000, 0, 70'001, 13, kTaskSize + 1, 2}), 0);
  check_read(cut(3 * kTaskSize, {1, 1000, 0, 70'001, 13, 2}), 1);
}

TEST_CASE("neighbours are read together, others are not") {
  const test::FakeSource source(test::pattern(100'000));
  std::vector<std::byte> to(5000);
  const std::span<std::byte> all(to);
  const std::vector<ReadPiece> pieces = {{0, all.subspan(0, 1000)},
                                         {1000, all.subspan(1000, 1000)},
                                         {2001, all.subspan(2000, 1000)},
                                         {500, all.subspan(3000, 1000)},
                                         {90'000, all.subspan(4000, 1000)}};
  read_all(source, pieces);
  CHECK(source.reads() ==
        std::vector<std::pair<std::uint64_t, std::size_t>>{{0, 3001}, {90'000, 1000}});
}

TEST_CASE("pieces in reverse order, and the same bytes twice") {
  const test::FakeSource source(test::pattern(100));
  std::vector<std::byte> to(6);
  const std::span<std::byte> all(to);
  const std::vector<ReadPiece> pieces = {
      {90, all.subspan(0, 2)}, {10, all.subspan(2, 2)}, {90, all.subspan(4, 2)}};
  read_all(source, pieces);
  CHECK(to[0] == source.bytes()[90]);
  CHECK(to[3] == source.bytes()[11]);
  CHECK(to[5] == source.bytes()[91]);
}

TEST_CASE("pieces outside the source are refused") {
  const test::FakeSource source(test::pattern(100));
  std::vector<std::byte> to(2);
  for (const std::uint64_t offset : {std::uint64_t{99}, std::uint64_t{101}, UINT64_MAX}) {
    const ReadPiece piece{offset, to};
    CHECK(test::outcome_of([&] { read_all(source, {&piece, 1}); }) == "kInvalidArgument");
  }
  CHECK(source.reads().empty());
}

TEST_CASE("exceptions of the source propagate from this thread and from others") {
  const std::size_t nbytes = 8 * kTaskSize;
  std::vector<std::byte> to(nbytes);
  const std::vector<ReadPiece> pieces = {{0, to}};
  for (std::size_t task = 0; task < 8; ++task) {
    test::FakeSource source(test::pattern(nbytes));
    source.breaks_at = task * kTaskSize + 5;
    CHECK_THROWS_AS(read_all(source, pieces), std::runtime_error);
  }
  test::FakeSource cut_short(test::pattern(nbytes));
  cut_short.ends_at = nbytes - 1;
  CHECK(test::outcome_of([&] { read_all(cut_short, pieces); }) == "kFileChanged");
  cut_short.ends_at = 0;
  CHECK(test::outcome_of([&] { read_all(cut_short, pieces); }) == "kFileChanged");
}

TEST_CASE("an interrupt stops a read midway") {
  constexpr std::size_t kTasks = 24;
  test::FakeSource source(test::pattern(kTasks * kTaskSize));
  source.delay = std::chrono::milliseconds(15);
  std::vector<std::byte> to(kTasks * kTaskSize);
  const std::vector<ReadPiece> pieces = {{0, to}};
  struct Stop {};
  int calls = 0;
  CHECK_THROWS_AS(read_all(source, pieces,
                           [&] {
                             ++calls;
                             throw Stop();
                           }),
                  Stop);
  CHECK(calls == 1);
  CHECK(source.reads().size() < kTasks);
}

TEST_CASE("an interrupt that does not throw changes nothing") {
  test::FakeSource source(test::pattern(8 * kTaskSize));
  source.delay = std::chrono::milliseconds(15);
  std::vector<std::byte> to(8 * kTaskSize);
  const std::vector<ReadPiece> pieces = {{0, to}};
  int calls = 0;
  read_all(source, pieces, [&] { ++calls; });
  CHECK(calls > 0);
  CHECK(to == source.bytes());
}

TEST_CASE("a source is asked for its number of readers only for large reads") {
  const test::FakeSource source(std::vector<std::byte>(std::size_t{9} << 20));
  std::vector<std::byte> to(source.size());
  const std::span<std::byte> all(to);
  const ReadPiece little{5, all.first(std::size_t{1} << 20)};
  read_all(source, {&little, 1});
  CHECK(source.times_asked == 0);  // it may cost a call of the system
  const ReadPiece much{0, all};
  read_all(source, {&much, 1});
  CHECK(source.times_asked == 1);
}

TEST_CASE("parts of one read are read together if they are short") {
  const std::size_t kib = 1024;
  const test::FakeSource source(test::pattern(3000 * kib));
  struct Place {
    std::uint64_t offset;
    std::size_t nbytes;
  };
  const auto reads_of = [&](const std::vector<Place>& places) {
    const std::size_t before = source.reads().size();
    std::vector<std::vector<std::byte>> to;
    for (const Place& place : places) to.emplace_back(place.nbytes);
    std::vector<ReadPiece> parts;
    for (std::size_t i = 0; i < places.size(); ++i) parts.push_back({places[i].offset, to[i]});
    source.read_parts(0, source.size(), parts);
    for (const ReadPiece& part : parts) {
      CHECK(std::equal(part.to.begin(), part.to.end(),
                       source.bytes().begin() + static_cast<std::ptrdiff_t>(part.offset)));
    }
    return source.reads().size() - before;
  };
  CHECK(reads_of({}) == 0);
  CHECK(reads_of({{5, 10}}) == 1);
  CHECK(reads_of({{5, 10}, {20, 0}, {100 * kib, kib}, {100 * kib, 2 * kib}}) == 1);  // overlap
  CHECK(reads_of({{0, 10}, {10, 256 * kib}, {300 * kib, 10}}) == 3);                 // one is long
  CHECK(reads_of({{0, 10}, {1024 * kib - 10, 10}}) == 1);
  CHECK(reads_of({{0, 10}, {1024 * kib - 9, 10}}) == 2);  // more than 1 MiB apart
  CHECK(reads_of({{0, 10}, {1500 * kib, 10}, {1501 * kib, 10}, {2900 * kib, 10}}) == 3);
}

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake_source.hpp"
#include "io/file_source.hpp"
#include "open/strided_read.hpp"
#include "slice_oracle.hpp"
#include "support.hpp"

using safetensors::ByteRuns;
using safetensors::check_runs;
using safetensors::copy_runs;
using safetensors::FileSource;
using safetensors::read_runs;

namespace {

constexpr std::uint64_t kGap = std::uint64_t{64} << 10;
constexpr std::uint64_t kPosition = 1000;  // of the tensor in the source

/// Copies the runs one after the other, in the simplest way.
std::vector<std::byte> gathered(const std::vector<std::byte>& tensor, const ByteRuns& runs) {
  std::vector<std::byte> out;
  for (const std::uint64_t begin : test::begins_of(runs)) {
    const auto first = tensor.begin() + static_cast<std::ptrdiff_t>(begin);
    out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(runs.run_nbytes));
  }
  return out;
}

/// Copies and reads the runs, compares both, and returns how many bytes were read.
std::uint64_t check_both(const std::vector<std::byte>& tensor, ByteRuns one) {
  one.concatenate();
  const std::span<const ByteRuns> runs(&one, 1);
  const std::vector<std::byte> wanted = gathered(tensor, one);
  REQUIRE(wanted.size() == one.nbytes());
  check_runs(runs, tensor.size(), wanted.size());
  std::vector<std::byte> copied(wanted.size());
  copy_runs(tensor, runs, copied, {});
  CHECK(copied == wanted);

  std::vector<std::byte> file = test::pattern(kPosition, 9);
  file.insert(file.end(), tensor.begin(), tensor.end());
  const test::FakeSource source(std::move(file));
  std::vector<std::byte> read(wanted.size());
  read_runs(source, kPosition, runs, read, {});
  CHECK(read == wanted);
  return source.nbytes_read();
}

std::string check_outcome(ByteRuns runs, std::uint64_t nbytes) {
  runs.concatenate();
  return test::outcome_of([&] { check_runs({&runs, 1}, nbytes, UINT64_MAX); });
}

}  // namespace

TEST_CASE("small runs, nested and overlapping") {
  const std::vector<std::byte> tensor = test::pattern(2000);
  CHECK(check_both(tensor, {0, 2000, {}}) == 2000);
  CHECK(check_both(tensor, {7, 5, {}}) == 5);
  CHECK(check_both(tensor, {0, 0, {}}) == 0);
  CHECK(check_both(tensor, {0, 3, {{0, 5}}}) == 0);
  CHECK(check_both(tensor, {3, 1, {{100, 10}}}) == 991);  // with the gaps, from first to last
  CHECK(check_both(tensor, {3, 10, {{100, 10}}}) == 1000);
  CHECK(check_both(tensor, {1, 2, {{3, 500}, {7, 30}}}) <= 1500);
  CHECK(check_both(tensor, {1, 2, {{2, 900}, {3, 300}, {4, 50}}}) <= 1800);
  check_both(tensor, {0, 4, {{3, 0}}});             // the same place again
  check_both(tensor, {0, 4, {{2, 1}, {5, 2}}});     // runs that overlap
  check_both(tensor, {0, 1, {{2, 10}, {3, 100}}});  // an outer stride below the inner
}

TEST_CASE("gaps up to 64 KiB are read, wider ones are not") {
  const std::vector<std::byte> tensor = test::pattern(4U << 20);
  for (const std::uint64_t run : {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{100'000}}) {
    const std::uint64_t narrow = run + kGap;
    const std::uint64_t count = tensor.size() / (narrow + 1);
    CAPTURE(run);
    const std::uint64_t with_gaps = check_both(tensor, {0, run, {{count, narrow}}});
    CHECK(with_gaps > count * run);
    CHECK(with_gaps <= count * narrow);
    CHECK(check_both(tensor, {0, run, {{count, narrow + 1}}}) == count * run);
  }
}

TEST_CASE("wide gaps between rows of a column range are not read") {
  const std::vector<std::byte> tensor = test::pattern(3U << 20);
  // Ten bytes of a row lie close, the rows a megabyte apart.
  CHECK(check_both(tensor, {5, 1, {{3, 1U << 20}, {10, 2}}}) == 3 * 19);
}

TEST_CASE("selections of several tasks, by several threads") {
  const std::vector<std::byte> tensor = test::pattern((24U << 20) + 13);
  check_both(tensor, {0, 1, {{tensor.size() / 3, 3}}});
  check_both(tensor, {2, 4096, {{tensor.size() / 5000, 5000}}});
  check_both(tensor, {1, 700'000, {{20, 1'200'000}}});
  check_both(tensor, {0, 3'000'000, {{3, 8'000'000}, {2, 4'000'001}}});
  check_both(tensor, {9, 600'000, {{30, 620'000}}});
  check_both(tensor, {9, 300'000, {{4, 6'000'000}, {15, 340'000}}});
  check_both(tensor, {13, tensor.size() - 13, {}});
}

TEST_CASE("a read is at most 1 MB and has whole runs") {
  const std::vector<std::byte> tensor = test::pattern(8U << 20);
  std::vector<std::byte> to(8U << 10);
  const test::FakeSource source(tensor);
  ByteRuns runs{0, 1, {{8U << 10, 1U << 10}}};
  runs.concatenate();
  read_runs(source, 0, {&runs, 1}, to, {});
  for (const auto& [offset, size] : source.reads()) CHECK(size <= 1U << 20);
  CHECK(source.reads().size() <= 12);
}

TEST_CASE("runs outside the tensor are refused, also if sums overflow") {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
  CHECK(check_outcome({0, 100, {}}, 100) == "ok");
  CHECK(check_outcome({1, 100, {}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({100, 1, {}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({UINT64_MAX, 1, {}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, UINT64_MAX, {}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, 10, {{10, 10}}}, 100) == "ok");
  CHECK(check_outcome({0, 10, {{10, 10}}}, 99) == "kInvalidArgument");
  CHECK(check_outcome({0, 1, {{3, kHalf}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, 1, {{2, kHalf}, {2, kHalf}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({1, 1, {{2, UINT64_MAX}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, 1, {{kHalf + 1, 2}, {2, 1}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, 2, {{kHalf + 1, 0}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({0, 2, {{kHalf, 0}}}, 100) == "kInvalidArgument");
  CHECK(check_outcome({999, 5, {{0, 5}}}, 100) == "ok");  // no run at all
  CHECK(check_outcome({999, 0, {{kHalf, kHalf}}}, 100) == "ok");
}

TEST_CASE("errors of the source and of interrupts propagate") {
  struct Stop {};
  test::FakeSource source(test::pattern(32U << 20));
  std::vector<std::byte> to(16U << 20);
  const ByteRuns close{0, 1U << 14, {{1U << 10, 1U << 15}}};
  const ByteRuns apart{0, 1U << 20, {{16, 1U << 21}}};
  for (ByteRuns runs : {close, apart}) {
    runs.concatenate();
    source.breaks_at = (20U << 20) + 3;
    CHECK_THROWS_AS(read_runs(source, 0, {&runs, 1}, to, {}), std::runtime_error);
    source.breaks_at = UINT64_MAX;
    source.ends_at = (30U << 20) + 1;
    CHECK(test::outcome_of([&] { read_runs(source, 0, {&runs, 1}, to, {}); }) == "kFileChanged");
    source.ends_at = UINT64_MAX;
    source.delay = std::chrono::milliseconds(15);
    CHECK_THROWS_AS(read_runs(source, 0, {&runs, 1}, to, [] { throw Stop(); }), Stop);
    source.delay = std::chrono::milliseconds(0);
  }
}

TEST_CASE("runs go where they say, those of several parts together") {
  const std::vector<std::byte> tensor = test::pattern(9U << 20);
  // Columns of two blocks, side by side in rows of 5000 bytes; and one long run behind them.
  const std::vector<ByteRuns> all = {{100, 2000, {{1000, 3000, 5000}}, 0},
                                     {3'500'000, 3000, {{1000, 4000, 5000}}, 2000},
                                     {8'000'000, 1'000'000, {}, 5'000'000}};
  constexpr std::size_t kRoom = 6'000'000;
  check_runs(all, tensor.size(), kRoom);
  CHECK(test::outcome_of([&] { check_runs(all, tensor.size(), kRoom - 1); }) == "kInvalidArgument");
  std::vector<std::byte> wanted(kRoom);
  for (const ByteRuns& runs : all) {
    std::size_t to = runs.to_first;
    for (const std::uint64_t begin : test::begins_of(runs)) {
      std::memcpy(wanted.data() + to, tensor.data() + begin, runs.run_nbytes);
      to += runs.loops.empty() ? 0 : runs.loops[0].to_stride;
    }
  }
  std::vector<std::byte> copied(kRoom);
  copy_runs(tensor, all, copied, {});
  CHECK(copied == wanted);
  const test::FakeSource source(tensor);
  std::vector<std::byte> read(kRoom);
  read_runs(source, 0, all, read, {});
  CHECK(read == wanted);
}

#if defined(__linux__)
TEST_CASE("of a file in the page cache, long gaps between runs are not read") {
  const auto nbytes_read = [] {
    std::ifstream io("/proc/self/io");
    std::string name;
    std::uint64_t nbytes = 0;
    io >> name >> nbytes;
    REQUIRE(name == "rchar:");
    return nbytes;
  };
  const std::vector<std::byte> content = test::pattern(4U << 20);
  const test::TempDir folder;
  test::write_text(folder / "f", {reinterpret_cast<const char*>(content.data()), content.size()});
  const auto file = FileSource::open(folder / "f");
  if (!file->is_cached(0, content.size())) {
    MESSAGE("skipped: the system does not say that a new file is in the page cache");
    return;
  }
  constexpr std::uint64_t kRun = 3000;
  for (const std::uint64_t gap : {std::uint64_t{4095}, std::uint64_t{4096}}) {
    const std::uint64_t rows = (content.size() - kPosition) / (kRun + gap);
    ByteRuns runs{0, kRun, {{rows, kRun + gap}}};
    runs.concatenate();
    std::vector<std::byte> read(rows * kRun);
    const std::uint64_t before = nbytes_read();
    read_runs(*file, kPosition, {&runs, 1}, read, {});
    const std::uint64_t nbytes = nbytes_read() - before;
    const std::vector<std::byte> tensor(content.begin() + kPosition, content.end());
    CHECK(read == gathered(tensor, runs));
    const std::uint64_t wanted = rows * (gap < 4096 ? kRun + gap : kRun);
    constexpr std::uint64_t kSlack = 100'000;  // reading /proc, and gaps between stretches
    CHECK(nbytes + kSlack > wanted);
    CHECK(nbytes < wanted + kSlack);
  }
}

TEST_CASE("runs of a file that has become shorter raise, in the page cache too") {
  const test::TempDir folder;
  test::write_text(folder / "f", std::string(4U << 20, 'x'));
  const auto file = FileSource::open(folder / "f");
  test::fs::resize_file(folder / "f", (3U << 20) + 5);
  ByteRuns runs{0, 4096, {{256, 16384}}};
  runs.concatenate();
  std::vector<std::byte> to(runs.nbytes());
  CHECK(test::outcome_of([&] { read_runs(*file, 0, {&runs, 1}, to, {}); }) == "kFileChanged");
}
#endif

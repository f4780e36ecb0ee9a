#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "io/run_cursor.hpp"
#include "support.hpp"

using safetensors::ByteRuns;
using safetensors::io::next_stretch;
using safetensors::io::RunCursor;
using safetensors::io::Stretch;

namespace {

std::vector<std::uint64_t> positions_of(const ByteRuns& runs) {
  std::vector<std::uint64_t> positions = {runs.first};
  for (const ByteRuns::Loop& loop : runs.loops) {
    std::vector<std::uint64_t> inner;
    for (const std::uint64_t from : positions) {
      for (std::uint64_t i = 0; i < loop.count; ++i) inner.push_back(from + i * loop.stride);
    }
    positions = inner;
  }
  return positions;
}

/// Returns how many runs the stretch has that begins with run `first`, by its definition.
std::uint64_t slow_count(const std::vector<std::uint64_t>& at, std::uint64_t run_nbytes,
                         std::size_t first, std::uint64_t max_runs, std::uint64_t gap,
                         std::uint64_t limit) {
  std::uint64_t count = 1;
  for (; count < max_runs; ++count) {
    const std::uint64_t end = at[first + count - 1] + run_nbytes;
    const std::uint64_t begin = at[first + count];
    if (begin < end || begin - end > gap || begin + run_nbytes - at[first] > limit) break;
  }
  return count;
}

const std::vector<std::vector<ByteRuns::Loop>> kLoops = {
    {},
    {{6, 4}},
    {{5, 7}},
    {{3, 40}, {4, 6}},
    {{3, 24}, {4, 6}},
    {{2, 5}, {3, 6}},  // the second round begins before the first one ends
    {{2, 50}, {2, 12}, {3, 4}},
};

}  // namespace

TEST_CASE("a cursor visits the runs in order, from any of them on") {
  for (const auto& loops : kLoops) {
    const ByteRuns runs{3, 2, loops};
    const std::vector<std::uint64_t> at = positions_of(runs);
    for (std::size_t first = 0; first < at.size(); ++first) {
      RunCursor cursor(runs, first);
      for (std::size_t i = first; i < at.size(); ++i) {
        CHECK(cursor.position() == at[i]);
        const std::uint64_t count = loops.empty() ? 1 : loops.back().count;
        CHECK(cursor.left_in_loop() == count - i % count);
        cursor.next();
      }
    }
  }
}

TEST_CASE("a stretch takes runs as long as the gaps and its length allow") {
  for (const auto& loops : kLoops) {
    for (const std::uint64_t run_nbytes : {1U, 4U}) {
      const ByteRuns runs{3, run_nbytes, loops};
      const std::vector<std::uint64_t> at = positions_of(runs);
      bool is_same = true;
      for (std::uint64_t gap = 0; gap < 10; ++gap) {
        for (std::uint64_t limit = 1; limit < 60; ++limit) {
          for (std::uint64_t max_runs :
               {std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{at.size()}}) {
            std::size_t first = 0;
            for (RunCursor cursor(runs, 0); first < at.size();) {
              max_runs = std::min<std::uint64_t>(max_runs, at.size() - first);
              const Stretch found = next_stretch(cursor, max_runs, gap, limit);
              const std::uint64_t count = slow_count(at, run_nbytes, first, max_runs, gap, limit);
              is_same = is_same && found.run_count == count && found.begin == at[first] &&
                        found.end == at[first + count - 1] + run_nbytes;
              first += found.run_count;
            }
          }
        }
      }
      CHECK(is_same);
    }
  }
}

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "region_oracle.hpp"
#include "safetensors/region.hpp"
#include "support.hpp"

using safetensors::byte_runs;
using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::Index;
using safetensors::IndexEntry;
using safetensors::Region;
using safetensors::resolve;
using safetensors::Selection;
using safetensors::shard;
using test::Layout;
using Entries = std::vector<IndexEntry>;
using Items = std::vector<Index>;
using Shape = std::vector<std::uint64_t>;

namespace {

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

std::string text_of(const Index& index) {
  using Kind = Index::Kind;
  if (index.kind == Kind::kInteger) return std::to_string(index.integer);
  if (index.kind == Kind::kEllipsis) return "...";
  if (index.kind == Kind::kNewAxis) return "None";
  return (index.start ? std::to_string(*index.start) : "") + ":" +
         (index.stop ? std::to_string(*index.stop) : "") + ":" + std::to_string(index.step);
}

void check_one(const Entries& entries, const Shape& shape, Dtype dtype, Layout layout) {
  const std::string difference = test::region_difference(
      entries, shape, dtype, layout, [](const auto& work) { return test::outcome_of(work); });
  if (difference.empty()) return;
  std::string text;
  for (const IndexEntry& entry : entries) {
    if (const Index* const index = std::get_if<Index>(&entry)) {
      text += " " + text_of(*index);
      continue;
    }
    text += " [";
    for (const Index& item : std::get<Items>(entry)) text += text_of(item) + " ";
    text += "]";
  }
  text += " of";
  for (const std::uint64_t size : shape) text += " " + std::to_string(size);
  FAIL(safetensors::name(dtype), text, ", layout ", static_cast<int>(layout), ": ", difference);
}

/// Returns all intervals of an axis, also the empty one.
Items intervals_of(std::uint64_t size) {
  Items intervals = {Index::slice(0, 0)};
  for (std::uint64_t begin = 0; begin < size; ++begin) {
    for (std::uint64_t end = begin + 1; end <= size; ++end) {
      intervals.push_back(
          Index::slice(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)));
    }
  }
  return intervals;
}

std::vector<Items> pairs_of(std::uint64_t size) {
  std::vector<Items> pairs;
  for (const Index& first : intervals_of(size)) {
    for (const Index& second : intervals_of(size)) pairs.push_back({first, second});
  }
  return pairs;
}

Entries some_entries() {
  return {Index::all(),
          Index::at(-1),
          Items{Index::slice(1, {}), Index::slice(0, 1)},
          Items{Index::slice(0, 2), Index::slice(2, 4), Index::slice(0, 2)},
          Items{Index::at(0), Index::at(-1), Index::at(0)},
          Items{Index::slice({}, {}, 2), Index::slice(1, {}, 2)},
          Items{}};
}

constexpr Layout kLayouts[] = {Layout::kDense, Layout::kPadded, Layout::kReversed};

}  // namespace

TEST_CASE("regions of one axis: all pairs of intervals, dtypes and layouts") {
  for (std::uint64_t size = 0; size <= 6; ++size) {
    for (const Items& pair : pairs_of(size)) {
      for (const Dtype dtype : safetensors::all_dtypes()) {
        for (const Layout layout : kLayouts) check_one({pair}, {size}, dtype, layout);
      }
    }
  }
}

TEST_CASE("regions of one axis: all triples of intervals") {
  const Items intervals = intervals_of(6);
  for (const Index& a : intervals) {
    for (const Index& b : intervals) {
      for (const Index& c : intervals) {
        check_one({Items{a, b, c}}, {6}, Dtype::kU8, Layout::kPadded);
        check_one({Items{a, b, c}}, {6, 3}, Dtype::kF6E2M3, Layout::kDense);
      }
    }
  }
}

TEST_CASE("regions of two axes: all pairs of intervals on both") {
  std::size_t count = 0;
  for (std::uint64_t shape = 0; shape < 16; ++shape) {
    const std::uint64_t rows = shape % 4;
    const std::uint64_t columns = shape / 4 + 1;
    for (const Items& a : pairs_of(rows)) {
      for (const Items& b : pairs_of(columns)) {
        constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kF4, Dtype::kF6E3M2, Dtype::kBF16};
        check_one({a, b}, {rows, columns}, kDtypes[count % 4], kLayouts[count / 4 % 3]);
        ++count;
      }
    }
  }
}

TEST_CASE("regions of shapes up to 4x4x4: all pairs of intervals on each axis") {
  const Entries others = some_entries();
  const auto& dtypes = safetensors::all_dtypes();
  std::size_t count = 0;
  for (std::uint64_t shape = 0; shape < 125; ++shape) {
    const Shape sizes = {shape % 5, shape / 5 % 5, shape / 25};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      for (const Items& pair : pairs_of(sizes[axis])) {
        for (const IndexEntry& a : others) {
          for (const IndexEntry& b : others) {
            Entries entries = {a, b};
            entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(axis), pair);
            // 22 dtypes and 3 layouts have no common divisor.
            check_one(entries, sizes, dtypes[count % dtypes.size()], kLayouts[count % 3]);
            ++count;
          }
        }
      }
    }
  }
  CHECK(count > 100'000);
}

TEST_CASE("lists with steps, integers, ellipses, new axes and errors at every place") {
  Entries choices = some_entries();
  choices.insert(choices.end(), {Index::ellipsis(), Index::new_axis(), Items{Index::at(4)},
                                 Items{Index::slice({}, {}, 0)}, Items{Index::ellipsis()}});
  std::size_t count = 0;
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 4}, Shape{2, 3, 4}, Shape{2, 1, 2, 3}}) {
    check_one({}, shape, Dtype::kF32, Layout::kDense);
    for (const IndexEntry& a : choices) {
      check_one({a}, shape, Dtype::kF32, Layout::kPadded);
      for (const IndexEntry& b : choices) {
        check_one({a, b}, shape, Dtype::kF4, kLayouts[count++ % 3]);
        for (const IndexEntry& c : choices) {
          check_one({a, b, c}, shape, count % 5 == 0 ? Dtype::kF4 : Dtype::kI16,
                    kLayouts[count % 3]);
          ++count;
        }
      }
    }
  }
}

TEST_CASE("ranges that continue each other become one") {
  const Shape shape = {20};
  const auto ranges_of = [&](const Items& items) {
    std::vector<std::vector<std::uint64_t>> ranges;
    const Region region = resolve(Entries{items}, shape);
    for (const auto& range : region.axes[0]) {
      ranges.push_back({range.start, range.count, range.step});
    }
    return ranges;
  };
  using Ranges = std::vector<std::vector<std::uint64_t>>;
  CHECK(ranges_of({Index::slice(2, 5), Index::at(5), Index::slice(6, 9)}) == Ranges{{2, 7, 1}});
  CHECK(ranges_of({Index::slice(0, 4, 2), Index::slice(4, 7, 2)}) == Ranges{{0, 4, 2}});
  CHECK(ranges_of({Index::at(3), Index::at(5)}) == Ranges{{3, 1, 1}, {5, 1, 1}});
  CHECK(ranges_of({Index::slice(5, 7), Index::slice(2, 2), Index::slice(2, 5)}) ==
        Ranges{{5, 2, 1}, {2, 3, 1}});
  CHECK(ranges_of({Index::slice(0, 4), Index::slice(0, 4)}) == Ranges{{0, 4, 1}, {0, 4, 1}});
  CHECK(ranges_of({}).empty());
}

TEST_CASE("a share of a fused tensor takes few and long runs") {
  const Shape shape = {6144, 4096};  // 4096 of Q, 1024 each of K and V
  const std::vector<std::uint64_t> blocks = {4096, 1024, 1024};
  std::vector<ByteRuns> rows = byte_runs(shard(shape, 0, 7, 8, blocks), shape, Dtype::kBF16);
  REQUIRE(rows.size() == 2);  // K's and V's rows have the same distance and size
  CHECK(rows[0].first == 3584U * 8192);
  CHECK(rows[0].run_nbytes == 512U * 8192);
  CHECK(rows[0].loops.empty());
  CHECK(rows[1].first == 4992U * 8192);
  CHECK(rows[1].to_first == 512U * 8192);
  CHECK(rows[1].run_nbytes == 128U * 8192);
  REQUIRE(rows[1].loops.size() == 1);
  CHECK(rows[1].loops[0].count == 2);
  CHECK(rows[1].loops[0].stride == 1024U * 8192);
  CHECK(rows[1].loops[0].to_stride == 128U * 8192);

  const std::vector<ByteRuns> columns = byte_runs(shard(shape, -1, 7, 8), shape, Dtype::kBF16);
  REQUIRE(columns.size() == 1);
  CHECK(columns[0].run_nbytes == 1024);
  REQUIRE(columns[0].loops.size() == 1);
  CHECK(columns[0].loops[0].count == 6144);

  const std::vector<std::uint64_t> wide = {8192 + 64, 2};
  const std::vector<ByteRuns> padded = byte_runs(shard(shape, 0, 7, 8), shape, Dtype::kBF16, wide);
  REQUIRE(padded.size() == 1);
  CHECK(padded[0].run_nbytes == 8192);
  CHECK(padded[0].loops[0].to_stride == 8192 + 64);
}

TEST_CASE("a region with one range an axis has the bytes of a selection") {
  const Shape shape = {4, 3, 8};
  const Items indices = {Index::slice(0, 4, 2), Index::all(), Index::slice(1, 3)};
  const ByteRuns expected = byte_runs(resolve(indices, shape), shape, Dtype::kU8);
  const std::vector<ByteRuns> all =
      byte_runs(resolve(Entries(indices.begin(), indices.end()), shape), shape, Dtype::kU8);
  REQUIRE(all.size() == 1);
  CHECK(all[0].first == expected.first);
  CHECK(all[0].run_nbytes == expected.run_nbytes);
  REQUIRE(all[0].loops.size() == expected.loops.size());
  for (std::size_t i = 0; i < expected.loops.size(); ++i) {
    CHECK(all[0].loops[i].count == expected.loops[i].count);
    CHECK(all[0].loops[i].stride == expected.loops[i].stride);
  }
}

TEST_CASE("shards are torch.chunk's, in each block") {
  for (std::uint64_t a = 0; a <= 9; ++a) {
    for (std::uint64_t b = 0; b <= 5; ++b) {
      for (std::uint64_t world = 1; world <= 7; ++world) {
        for (std::uint64_t rank = 0; rank < world; ++rank) {
          std::vector<std::uint64_t> expected;
          for (const auto& [begin, size] : {std::pair(std::uint64_t{0}, a), std::pair(a, b)}) {
            const std::uint64_t share = (size + world - 1) / world;
            for (std::uint64_t i = rank * share; i < std::min(size, (rank + 1) * share); ++i) {
              expected.push_back(begin + i);
            }
          }
          const Shape shape = {2, a + b};
          const std::vector<std::uint64_t> blocks = {a, b};
          const Region region = shard(shape, rank % 2 == 0 ? 1 : -1, rank, world, blocks);
          std::vector<std::uint64_t> taken;
          for (const auto& range : region.axes[1]) {
            for (std::uint64_t i = 0; i < range.count; ++i) taken.push_back(range.start + i);
          }
          CHECK(taken == expected);
          CHECK(region.shape == Shape{2, expected.size()});
          CHECK(region.axes[0].size() == 1);
        }
      }
    }
  }
  const Region last = shard(Shape{kHuge}, 0, kHuge - 1, kHuge);
  CHECK(last.axes[0][0].start == kHuge - 1);
}

TEST_CASE("shards refuse what is not there") {
  const Shape shape = {6, 4};
  const auto outcome = [&](std::int64_t dim, std::uint64_t rank, std::uint64_t world,
                           const std::vector<std::uint64_t>& blocks) {
    return test::outcome_of([&] { (void)shard(shape, dim, rank, world, blocks); });
  };
  CHECK(outcome(-2, 1, 2, {4, 2}) == "ok");
  CHECK(outcome(2, 0, 2, {}) == "kIndexOutOfBounds");
  CHECK(outcome(-3, 0, 2, {}) == "kIndexOutOfBounds");
  CHECK(outcome(0, 2, 2, {}) == "kInvalidArgument");
  CHECK(outcome(0, 0, 0, {}) == "kInvalidArgument");
  CHECK(outcome(0, 0, 2, {4, 1}) == "kInvalidArgument");
  CHECK(outcome(0, 0, 2, {4, 3}) == "kInvalidArgument");
  CHECK(outcome(0, 0, 2, {6, kHuge}) == "kInvalidArgument");
}

TEST_CASE("byte_runs refuses regions that do not fit") {
  const Shape shape = {4, 8};
  const auto outcome = [](const Region& region, const Shape& of, Dtype dtype = Dtype::kF32,
                          const std::vector<std::uint64_t>& to_strides = {}) {
    return test::outcome_of([&] { (void)byte_runs(region, of, dtype, to_strides); });
  };
  const std::vector<Selection::Axis> all = {{0, 8, 1}};
  CHECK(outcome({{{{0, 4, 1}}, all}, {4, 8}}, shape) == "ok");
  for (const Selection::Axis& axis :
       {Selection::Axis{4, 1, 1}, Selection::Axis{1, 4, 1}, Selection::Axis{0, 3, 2},
        Selection::Axis{0, 2, 0}, Selection::Axis{kHuge, 1, 1}, Selection::Axis{0, kHuge, 1},
        Selection::Axis{1, 2, kHuge}}) {
    CAPTURE(axis.start);
    CHECK(outcome({{{axis}, all}, {axis.count, 8}}, shape) == "kIndexOutOfBounds");
  }
  CHECK(outcome({{all}, {8}}, shape) == "kInvalidArgument");
  CHECK(outcome({{{{0, 4, 1}}, all}, {8, 4}}, shape) == "kInvalidArgument");
  CHECK(outcome({{{{0, 4, 1}}, all}, {4}}, shape) == "kInvalidArgument");
  CHECK(outcome({{{{0, 4, 1}}, all}, {4, 8}}, shape, Dtype::kF32, {32}) == "kInvalidArgument");
  CHECK(outcome({{{{0, 4, 1}}, all}, {4, 8}}, shape, Dtype::kF32, {kHuge, 4}) == "kOverflow");
  CHECK(outcome({{{{0, 4, 1}}, all}, {4, 8}}, shape, Dtype::kF32, {std::uint64_t{1} << 60, 4}) ==
        "kOverflow");
  CHECK(outcome({{{{0, 4, 1}}, all}, {4, 8}}, shape, static_cast<Dtype>(200)) ==
        "kUnsupportedDtype");
  const Shape huge = {std::uint64_t{1} << 32, std::uint64_t{1} << 32};
  CHECK(outcome({{{{0, 1, 1}}, {{0, 1, 1}}}, {1, 1}}, huge) == "kOverflow");
}

TEST_CASE("a region may repeat bytes until their number does not fit") {
  // 2^11 ranges that all overlap, so that no two of them are one loop.
  const Region region = {{std::vector<Selection::Axis>(std::size_t{1} << 11, {0, 2, 1}),
                          std::vector<Selection::Axis>(std::size_t{1} << 9, {0, 2, 1})},
                         {std::uint64_t{1} << 12, std::uint64_t{1} << 10}};
  const Shape shape = {2, 3};
  CHECK(byte_runs(region, shape, Dtype::kU8).size() == std::size_t{1} << 20);
  Region more = region;
  more.axes[1].insert(more.axes[1].end(), {{0, 2, 1}, {0, 2, 1}});
  more.shape[1] += 4;
  CHECK(test::outcome_of([&] { (void)byte_runs(more, shape, Dtype::kU8); }) == "kInvalidArgument");

  const std::uint64_t size = std::uint64_t{1} << 40;
  const std::vector<Selection::Axis> twice(std::size_t{1} << 20, {0, size, 1});
  const Region large = {{twice, {{0, 1, 1}}}, {size << 20, 1}};
  CHECK(test::outcome_of([&] { (void)byte_runs(large, Shape{size, 2}, Dtype::kF64); }) ==
        "kOverflow");
}

TEST_CASE("errors show the item of the list, and name the tensor") {
  const std::vector<std::uint64_t> shape = {4, 6};
  const safetensors::TensorInfo info = {"t", shape, 0, 48, Dtype::kI16};
  const Entries entries = {Index::slice(1, 3), Items{Index::at(2), Index::at(6)}};
  const auto error = test::error_of([&] { (void)safetensors::select_part(info, entries); });
  CHECK(test::name_of(error.code()) == "kIndexOutOfBounds");
  CHECK(std::string(error.what()) ==
        "Error during slicing [1:3, 6] with shape [4, 6]: index 6 out of bounds for tensor "
        "dimension #1 of size 6: tensor `t`");
  CHECK(error.subject() == "t");
  const auto part =
      safetensors::select_part(info, Entries{Items{Index::at(3), Index::slice(0, 2)}});
  CHECK(part.region.shape == Shape{3, 6});
  REQUIRE(part.runs.size() == 2);
  CHECK(part.runs[1].to_first == 12);
}

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/slice.hpp"
#include "slice_oracle.hpp"
#include "support.hpp"

using safetensors::byte_runs;
using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::Index;
using safetensors::resolve;
using safetensors::Selection;
using Shape = std::vector<std::uint64_t>;

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

void check_one(const std::vector<Index>& indices, const Shape& shape, Dtype dtype) {
  const std::string difference = test::slice_difference(
      indices, shape, dtype, [](const auto& work) { return test::outcome_of(work); });
  if (difference.empty()) return;
  std::string text;
  for (const Index& index : indices) {
    text += " kind " + std::to_string(static_cast<int>(index.kind)) + " " +
            std::to_string(index.integer) + " [" +
            (index.start ? std::to_string(*index.start) : "") + ":" +
            (index.stop ? std::to_string(*index.stop) : "") + ":" + std::to_string(index.step) +
            "]";
  }
  text += " of";
  for (const std::uint64_t size : shape) text += " " + std::to_string(size);
  FAIL(safetensors::name(dtype), text, ": ", difference);
}

std::vector<Index> all_indices(std::int64_t to, std::int64_t steps) {
  std::vector<Index> indices;
  for (std::int64_t i = -to; i <= to; ++i) indices.push_back(Index::at(i));
  std::vector<std::optional<std::int64_t>> bounds = {std::nullopt};
  for (std::int64_t i = -to; i <= to; ++i) bounds.emplace_back(i);
  for (const auto& start : bounds) {
    for (const auto& stop : bounds) {
      for (std::int64_t step = 1; step <= steps; ++step) {
        indices.push_back(Index::slice(start, stop, step));
      }
    }
  }
  return indices;
}

std::vector<Index> some_indices() {
  return {
      Index::all(),           Index::at(0),         Index::at(-1),      Index::at(2),
      Index::slice(1, {}),    Index::slice({}, 2),  Index::slice(1, 3), Index::slice({}, {}, 2),
      Index::slice(1, {}, 2), Index::slice(-2, {}), Index::slice(2, 2), Index::slice({}, -1, 3)};
}

}  // namespace

TEST_CASE("one axis: all sizes up to 5, all indices") {
  for (const Index& index : all_indices(6, 4)) {
    for (std::uint64_t size = 0; size <= 5; ++size) {
      for (const Dtype dtype : {Dtype::kU8, Dtype::kF4, Dtype::kF6E2M3, Dtype::kF64}) {
        check_one({index}, {size}, dtype);
      }
    }
  }
}

TEST_CASE("two axes: all small shapes, many indices") {
  const std::vector<Index> indices = all_indices(3, 2);
  for (const Index& a : indices) {
    for (const Index& b : some_indices()) {
      for (std::uint64_t rows = 0; rows <= 3; ++rows) {
        for (std::uint64_t columns = 0; columns <= 4; ++columns) {
          const Dtype dtype = (rows + columns) % 2 == 0 ? Dtype::kF4 : Dtype::kF16;
          check_one({a, b}, {rows, columns}, dtype);
          check_one({b, a}, {columns, rows}, dtype);
        }
      }
    }
  }
}

TEST_CASE("three axes: all small shapes, some indices") {
  const std::vector<Index> indices = some_indices();
  std::uint32_t count = 0;
  for (const Index& a : indices) {
    for (const Index& b : indices) {
      for (const Index& c : indices) {
        for (std::uint64_t shape = 0; shape < 64; ++shape) {
          constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kF4, Dtype::kF6E3M2, Dtype::kC64,
                                       Dtype::kI32};
          check_one({a, b, c}, {shape % 4, shape / 4 % 4, shape / 16}, kDtypes[count++ % 5]);
        }
      }
    }
  }
}

TEST_CASE("fewer indices, ellipses and new axes at every place") {
  const std::vector<Index> choices = {Index::at(1), Index::slice(1, 3), Index::ellipsis(),
                                      Index::new_axis()};
  const std::vector<Shape> shapes = {{}, {3}, {2, 3}, {4, 2, 3}, {2, 0, 2}, {2, 1, 2, 3}};
  for (const Shape& shape : shapes) {
    check_one({}, shape, Dtype::kF32);
    for (const Index& a : choices) {
      check_one({a}, shape, Dtype::kF32);
      for (const Index& b : choices) {
        check_one({a, b}, shape, Dtype::kF32);
        for (const Index& c : choices) {
          check_one({a, b, c}, shape, Dtype::kF32);
          for (const Index& d : choices) check_one({a, b, c, d}, shape, Dtype::kF4);
        }
      }
    }
  }
}

TEST_CASE("bounds and steps at the ends of 64 bits") {
  for (const std::int64_t bound : {kMin, kMin + 1, kMax, kMax - 1}) {
    for (std::uint64_t size = 0; size <= 4; ++size) {
      check_one({Index::at(bound)}, {size}, Dtype::kU8);
      for (const std::int64_t step : {std::int64_t{1}, std::int64_t{2}, kMax - 1, kMax}) {
        check_one({Index::slice(bound, {}, step)}, {size}, Dtype::kU8);
        check_one({Index::slice({}, bound, step)}, {size, 3}, Dtype::kI16);
        check_one({Index::slice(1, bound, step)}, {size, 3}, Dtype::kI16);
        check_one({Index::slice(bound, kMax, step)}, {size}, Dtype::kF4);
      }
    }
  }
}

TEST_CASE("steps below 1 are refused") {
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{-1}, kMin}) {
    check_one({Index::slice({}, {}, step)}, {3}, Dtype::kU8);
    check_one({Index::at(9), Index::slice({}, {}, step)}, {3}, Dtype::kU8);
  }
}

TEST_CASE("a tensor with an invalid dtype has no bytes to select") {
  const std::vector<std::uint64_t> shape = {4};
  const auto error = test::error_of([&] {
    (void)safetensors::byte_runs(resolve(std::vector<Index>{}, shape), shape,
                                 static_cast<Dtype>(99));
  });
  CHECK(test::name_of(error.code()) == "kUnsupportedDtype");
  CHECK(std::string(error.what()) == "no dtype has the value 99");
}

TEST_CASE("shapes of the largest sizes") {
  constexpr std::uint64_t kBytes = (std::uint64_t{1} << 61) - 1;  // 2^64 - 8 bits
  const Shape line = {kBytes};
  const auto runs_of = [](const std::vector<Index>& indices, const Shape& shape, Dtype dtype) {
    return byte_runs(resolve(indices, shape), shape, dtype);
  };
  CHECK(runs_of({Index::at(-1)}, line, Dtype::kU8).first == kBytes - 1);
  CHECK(runs_of({}, line, Dtype::kU8).run_nbytes == kBytes);
  CHECK(runs_of({Index::slice(kMin, kMax)}, line, Dtype::kU8).run_nbytes == kBytes);
  const ByteRuns ends =
      runs_of({Index::slice({}, {}, static_cast<std::int64_t>(kBytes - 1))}, line, Dtype::kU8);
  CHECK(ends.run_count() == 2);
  CHECK(ends.loops.at(0).stride == kBytes - 1);
  const Shape square = {std::uint64_t{1} << 30, std::uint64_t{1} << 30};
  const ByteRuns column = runs_of({Index::all(), Index::at(-1)}, square, Dtype::kU8);
  CHECK(column.run_count() == std::uint64_t{1} << 30);
  CHECK(column.first == (std::uint64_t{1} << 30) - 1);
  CHECK(column.nbytes() == std::uint64_t{1} << 30);

  const Shape empty = {0, std::uint64_t{1} << 63, std::uint64_t{1} << 63};
  CHECK(runs_of({}, empty, Dtype::kF64).nbytes() == 0);
  CHECK(runs_of({Index::all(), Index::at(-1), Index::slice(5, 9)}, empty, Dtype::kF4).nbytes() ==
        0);
  const Shape largest = {std::numeric_limits<std::uint64_t>::max(), 0};
  CHECK(resolve(std::vector{Index::at(-1)}, largest).axes.at(0).start ==
        std::numeric_limits<std::uint64_t>::max() - 1);
  CHECK(resolve(std::vector{Index::slice(-2, kMax)}, largest).shape.at(0) == 0);
}

TEST_CASE("neighbouring loops are merged, and whole rows are one run") {
  const Shape shape = {4, 5, 6};
  const auto runs_of = [&](const std::vector<Index>& indices) {
    return byte_runs(resolve(indices, shape), shape, Dtype::kF32);
  };
  const ByteRuns rows = runs_of({Index::slice(1, 3)});
  CHECK(rows.loops.empty());
  CHECK(rows.first == 120);
  CHECK(rows.run_nbytes == 240);
  const ByteRuns column = runs_of({Index::all(), Index::all(), Index::at(2)});
  REQUIRE(column.loops.size() == 1);
  CHECK(column.loops[0].count == 20);
  CHECK(column.loops[0].stride == 24);
  const ByteRuns row = runs_of({Index::at(1), Index::at(2)});
  CHECK(row.loops.empty());
  CHECK(row.run_nbytes == 24);
}

TEST_CASE("error texts name the expression and the shape") {
  const Shape shape = {2, 3};
  const auto text = [&](const std::vector<Index>& indices) {
    return std::string(test::error_of([&] { (void)resolve(indices, shape); }).what());
  };
  CHECK(text({Index::at(2)}) ==
        "Error during slicing [2] with shape [2, 3]: index 2 out of bounds for tensor dimension #0 "
        "of size 2");
  CHECK(text({Index::slice(1, {}), Index::ellipsis(), Index::new_axis(), Index::slice({}, -1, 2),
              Index::all()})
            .starts_with("Error during slicing [1:, None, :-1:2, :] with shape [2, 3]: "));
  CHECK(text({Index::slice({}, {}, 0)}) == "Slice step must be a positive integer, got 0");
  const Shape cube = {2, 3, 4};
  CHECK(std::string(test::error_of([&] {
                      (void)resolve(std::vector{Index::ellipsis(), Index::at(9)}, cube);
                    }).what())
            .starts_with("Error during slicing [:, :, 9] with shape [2, 3, 4]: "));
}

// C: parts of tensors, and tensors that a caller has changed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "safetensors/safe_open.hpp"

using safetensors::Index;
using safetensors::SafeOpen;

namespace {

const std::vector<safetensors_index> kAll = {{SAFETENSORS_ALL, 0, 0, 0, 0}};

}  // namespace

TEST_CASE("C: slices equal those of C++") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string bytes =
      test::saved(path, {test::tensor_of("t", safetensors::Dtype::kI16, {5, 4, 3}),
                         test::tensor_of("u", safetensors::Dtype::kU8, {0, 9})});
  const SafeOpen wanted(path);
  struct Case {
    std::vector<safetensors_index> c;
    std::vector<Index> cpp;
    bool together;
  };
  const std::vector<Case> cases = {
      {{}, {}, true},
      {{{SAFETENSORS_RANGE, 0, 1, 3, 0}}, {Index::slice(1, 3)}, true},
      {{{SAFETENSORS_ONE, 0, -1, 0, 0}}, {Index::at(-1)}, true},
      {{{SAFETENSORS_ALL, 0, 0, 0, 0}, {SAFETENSORS_ONE, 0, 2, 0, 0}},
       {Index::all(), Index::at(2)},
       false},
      {{{SAFETENSORS_ELLIPSIS, 0, 0, 0, 0},
        {SAFETENSORS_NEW_AXIS, 0, 0, 0, 0},
        {SAFETENSORS_RANGE, 0, -2, SAFETENSORS_END, 1}},
       {Index::ellipsis(), Index::new_axis(), Index::slice(-2, {})},
       false},
      {{{SAFETENSORS_RANGE, 0, 0, SAFETENSORS_END, 2}}, {Index::slice({}, {}, 2)}, false},
      {{{SAFETENSORS_RANGE, 0, 4, 2, 1}}, {Index::slice(4, 2)}, true},
  };
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    const safetensors_tensor tensor = test::find(file, "t");
    for (const Case& each : cases) {
      const auto view = wanted.get_slice("t", each.cpp);
      std::uint64_t shape[8];
      safetensors_tensor part{};
      REQUIRE(safetensors_slice(file.get(), &tensor, each.c.data(), each.c.size(), shape, &part,
                                nullptr) == SAFETENSORS_OK);
      CHECK(std::ranges::equal(std::span(part.shape, part.rank), view.shape));
      CHECK(part.nbytes == view.nbytes());
      CHECK((part.data != nullptr) == (each.together && way != 2));
      std::vector<std::byte> copy(part.nbytes);
      CHECK(test::read(file.get(), tensor, copy.data(), copy.size(), nullptr, each.c) ==
            SAFETENSORS_OK);
      CHECK(std::ranges::equal(copy, view.bytes()));
      // A part whose bytes are contiguous can be used like a whole tensor.
      std::ranges::fill(copy, std::byte{0});
      const std::int32_t code = test::read(file.get(), part, copy.data(), copy.size());
      CHECK(test::named(code) == (each.together ? "ok" : "kInvalidArgument"));
      if (each.together) CHECK(std::ranges::equal(copy, view.bytes()));
    }
    const auto outcome = [&](const safetensors_tensor& of, safetensors_index index) {
      std::uint64_t shape[8];
      safetensors_tensor part{};
      return test::named(safetensors_slice(file.get(), &of, &index, 1, shape, &part, nullptr));
    };
    CHECK(outcome(test::find(file, "u"), {SAFETENSORS_ALL, 0, 0, 0, 0}) == "ok");
    CHECK(outcome(tensor, {SAFETENSORS_ONE, 0, 5, 0, 0}) == "kIndexOutOfBounds");
    CHECK(outcome(tensor, {SAFETENSORS_RANGE, 0, 0, 1, -1}) == "kInvalidSlice");
    CHECK(outcome(tensor, {7, 0, 0, 0, 0}) == "kInvalidArgument");
    CHECK(outcome(tensor, {SAFETENSORS_ALL, 1, 0, 0, 0}) == "kInvalidArgument");
  }
}

TEST_CASE("C: functions for whole tensors refuse a part, and errors name tensor and file") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string bytes =
      test::saved(path, {test::tensor_of("weight", safetensors::Dtype::kF32, {4, 2})});
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    const safetensors_tensor whole = test::find(file, "weight");
    const auto error_of = [&](const safetensors_tensor& tensor, safetensors_index index) {
      std::uint64_t shape[8];
      safetensors_tensor part{};
      safetensors_error error{};
      (void)safetensors_slice(file.get(), &tensor, &index, 1, shape, &part, &error);
      return test::named(error.code) + ": " + error.text;
    };
    const std::string out_of_bounds = error_of(whole, {SAFETENSORS_ONE, 0, 9, 0, 0});
    CHECK(out_of_bounds.starts_with("kIndexOutOfBounds: Error during slicing [9] "));
    CHECK(out_of_bounds.ends_with(": tensor `weight`" +
                                  (way == 0 ? "" : " (in " + path.string() + ")")));
    std::uint64_t shape[8];
    safetensors_tensor rows{};
    const safetensors_index some = {SAFETENSORS_RANGE, 0, 1, 3, 1};
    REQUIRE(safetensors_slice(file.get(), &whole, &some, 1, shape, &rows, nullptr) == 0);
    CHECK(error_of(rows, some) ==
          "kInvalidTensorInfo: a whole tensor is required, as safetensors_find returns it: this is "
          "a part of tensor `weight`, or was changed");
    rows.rank = 100000000;
    CHECK(error_of(rows, some).starts_with("kInvalidTensorInfo"));
  }
}

TEST_CASE("C: no change to a tensor makes a function touch other memory") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string bytes =
      test::saved(path, {test::tensor_of("t", safetensors::Dtype::kF32, {4}),
                         test::tensor_of("empty", safetensors::Dtype::kF32, {0, 3})});
  // Nothing may be read there; a sanitizer, or the processor, would tell.
  const auto* const nowhere = reinterpret_cast<const char*>(std::uintptr_t{16});
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    const auto outcome = [&](const safetensors_tensor& tensor) {
      std::uint64_t shape[8];
      std::byte room[16];
      safetensors_tensor part{};
      const std::int32_t codes[] = {
          safetensors_slice(file.get(), &tensor, nullptr, 0, shape, &part, nullptr),
          test::read(file.get(), tensor, room, sizeof room, nullptr, kAll),
          test::read(file.get(), tensor, room, sizeof room)};
      return test::named(codes[0]) + " " + test::named(codes[1]) + " " + test::named(codes[2]);
    };
    const safetensors_tensor good = test::find(file, "t");
    CHECK(outcome(good) == "ok ok ok");
    safetensors_tensor tensor = good;
    tensor.rank = 100000000;
    CHECK(outcome(tensor) == "kInvalidTensorInfo kInvalidTensorInfo ok");
    tensor = good;
    tensor.shape = reinterpret_cast<const std::uint64_t*>(nowhere);
    CHECK(outcome(tensor) == "kInvalidTensorInfo kInvalidTensorInfo ok");
    tensor = good;
    tensor.name = nowhere;
    tensor.name_size = SIZE_MAX;
    tensor.data = nowhere;
    CHECK(outcome(tensor) == "ok ok ok");
    tensor.nbytes = 12;
    CHECK(outcome(tensor) == "kInvalidTensorInfo kInvalidTensorInfo kInvalidArgument");
    tensor.nbytes = UINT64_MAX;
    CHECK(outcome(tensor) == "kInvalidArgument kInvalidArgument kInvalidArgument");
    tensor = good;
    tensor.dtype = SAFETENSORS_I32;
    CHECK(outcome(tensor) == "kInvalidTensorInfo kInvalidTensorInfo ok");
    tensor = test::find(file, "empty");
    CHECK(outcome(tensor) == "ok kInvalidArgument kInvalidArgument");
    tensor.rank = 100000000;
    CHECK(outcome(tensor) == "kInvalidTensorInfo kInvalidTensorInfo kInvalidArgument");
  }
}

TEST_CASE("C: a tensor that the caller changed, or that belongs to another file, is refused") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string bytes =
      test::saved(path, {test::tensor_of("t", safetensors::Dtype::kF32, {4})});
  std::vector<std::byte> room(64);
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    const safetensors_tensor good = test::find(file, "t");
    const auto outcome = [&](auto change) {
      safetensors_tensor tensor = good;
      change(tensor);
      const std::int32_t whole = test::read(file.get(), tensor, room.data(), tensor.nbytes);
      const std::int32_t part =
          test::read(file.get(), tensor, room.data(), tensor.nbytes, nullptr, kAll);
      return test::named(whole) + " " + test::named(part);
    };
    CHECK(outcome([](auto&) {}) == "ok ok");
    CHECK(outcome([](auto& t) { t.begin = 1; }) == "kInvalidArgument kInvalidArgument");
    CHECK(outcome([](auto& t) { t.begin = UINT64_MAX - 8; }) ==
          "kInvalidArgument kInvalidArgument");
    const std::uint64_t huge[] = {std::uint64_t{1} << 62, 4};
    CHECK(outcome([&](auto& t) { t.shape = huge, t.rank = 2; }) == "ok kInvalidTensorInfo");
    CHECK(outcome([](auto& t) { t.dtype = 99; }) == "kUnsupportedDtype kUnsupportedDtype");
    CHECK(outcome([](auto& t) { t.name = nullptr; }) == "ok ok");
    CHECK(outcome([](auto& t) { t.file = 1; }) == "kInvalidArgument kInvalidArgument");
    CHECK(test::named(test::read(file.get(), good, room.data(), 15)) == "kInvalidArgument");
    CHECK(test::named(test::read(file.get(), good, nullptr, 16)) == "kInvalidArgument");
    CHECK(test::named(test::read(nullptr, good, room.data(), 16)) == "kInvalidArgument");
  }
}

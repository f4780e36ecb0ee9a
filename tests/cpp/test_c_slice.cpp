// C: parts of tensors, and tensors that a caller made up.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "safetensors/safe_open.hpp"

using safetensors::Index;
using safetensors::SafeOpen;

TEST_CASE("C: slices are those of C++") {
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
      {{{SAFETENSORS_RANGE, 1, 3, 0}}, {Index::slice(1, 3)}, true},
      {{{SAFETENSORS_ONE, -1, 0, 0}}, {Index::at(-1)}, true},
      {{{SAFETENSORS_ALL, 0, 0, 0}, {SAFETENSORS_ONE, 2, 0, 0}},
       {Index::all(), Index::at(2)},
       false},
      {{{SAFETENSORS_ELLIPSIS, 0, 0, 0},
        {SAFETENSORS_NEW_AXIS, 0, 0, 0},
        {SAFETENSORS_RANGE, -2, SAFETENSORS_END, 1}},
       {Index::ellipsis(), Index::new_axis(), Index::slice(-2, {})},
       false},
      {{{SAFETENSORS_RANGE, 0, SAFETENSORS_END, 2}}, {Index::slice({}, {}, 2)}, false},
      {{{SAFETENSORS_RANGE, 4, 2, 1}}, {Index::slice(4, 2)}, true},
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
      CHECK(safetensors_read_slice(file.get(), &tensor, each.c.data(), each.c.size(), copy.data(),
                                   copy.size(), nullptr) == SAFETENSORS_OK);
      CHECK(std::ranges::equal(copy, view.bytes()));
      // A part whose bytes stand together is a tensor like others.
      std::ranges::fill(copy, std::byte{0});
      const std::int32_t code =
          safetensors_read(file.get(), &part, copy.data(), copy.size(), nullptr);
      CHECK(test::named(code) == (each.together ? "ok" : "kInvalidArgument"));
      if (each.together) CHECK(std::ranges::equal(copy, view.bytes()));
    }
    const auto outcome = [&](const safetensors_tensor& of, safetensors_index index) {
      std::uint64_t shape[8];
      safetensors_tensor part{};
      return test::named(safetensors_slice(file.get(), &of, &index, 1, shape, &part, nullptr));
    };
    CHECK(outcome(test::find(file, "u"), {SAFETENSORS_ALL, 0, 0, 0}) == "ok");
    CHECK(outcome(tensor, {SAFETENSORS_ONE, 5, 0, 0}) == "kIndexOutOfBounds");
    CHECK(outcome(tensor, {SAFETENSORS_RANGE, 0, 1, -1}) == "kInvalidSlice");
    CHECK(outcome(tensor, {7, 0, 0, 0}) == "kInvalidArgument");
  }
}

TEST_CASE("C: a tensor that the caller has changed, or of another file, is refused") {
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
      const std::int32_t whole =
          safetensors_read(file.get(), &tensor, room.data(), tensor.nbytes, nullptr);
      const std::int32_t part = safetensors_read_slice(file.get(), &tensor, nullptr, 0, room.data(),
                                                       tensor.nbytes, nullptr);
      return test::named(whole) + " " + test::named(part);
    };
    CHECK(outcome([](auto&) {}) == "ok ok");
    CHECK(outcome([](auto& t) { t.begin = 1; }) == "kInvalidArgument kInvalidArgument");
    CHECK(outcome([](auto& t) { t.begin = UINT64_MAX - 8; }) ==
          "kInvalidArgument kInvalidArgument");
    const std::uint64_t huge[] = {std::uint64_t{1} << 62, 4};
    CHECK(outcome([&](auto& t) { t.shape = huge, t.rank = 2; }) == "ok kInvalidTensorInfo");
    CHECK(outcome([](auto& t) { t.dtype = 99; }) == "kUnsupportedDtype kUnsupportedDtype");
    CHECK(outcome([](auto& t) { t.name = nullptr; }) == "kInvalidArgument kInvalidArgument");
    CHECK(test::named(safetensors_read(file.get(), &good, room.data(), 15, nullptr)) ==
          "kInvalidArgument");
    CHECK(test::named(safetensors_read(file.get(), &good, nullptr, 16, nullptr)) ==
          "kInvalidArgument");
    CHECK(test::named(safetensors_read(nullptr, &good, room.data(), 16, nullptr)) ==
          "kInvalidArgument");
  }
}

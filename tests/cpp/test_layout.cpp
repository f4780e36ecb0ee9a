#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "roundtrip.hpp"
#include "safetensors/save.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::LayoutPlan;
using safetensors::Metadata;
using safetensors::plan_layout;
using safetensors::TensorData;
using test::OwnTensor;

namespace {

std::string json_of(const LayoutPlan& plan) {
  std::string json = plan.prologue.substr(8);
  CHECK(plan.prologue.substr(0, 8) == test::length_bytes(json.size()));
  CHECK(plan.prologue.size() % 8 == 0);
  while (!json.empty() && json.back() == ' ') json.pop_back();
  CHECK(plan.prologue.size() - 8 - json.size() < 8);
  return json;
}

std::string json_of(const std::vector<OwnTensor>& tensors, const Metadata* metadata = nullptr) {
  return json_of(plan_layout(test::views_of(tensors), metadata));
}

std::string json_of_name(std::string_view name) {
  const std::vector<std::uint64_t> shape = {0};
  const TensorData tensor{name, shape, {}, Dtype::kU8};
  return json_of(plan_layout({&tensor, 1}));
}

std::string outcome(const TensorData& tensor) {
  return test::outcome_of([&] { (void)plan_layout({&tensor, 1}); });
}

}  // namespace

TEST_CASE("an empty plan, one with only metadata, and one tensor") {
  const std::vector<OwnTensor> none;
  CHECK(json_of(none) == "{}");
  const Metadata empty;
  CHECK(json_of(none, &empty) == R"({"__metadata__":{}})");
  const Metadata metadata = {{"format", "pt"}};
  CHECK(json_of(none, &metadata) == R"({"__metadata__":{"format":"pt"}})");
  const std::vector<OwnTensor> one = {test::tensor_of("a", Dtype::kF32, {2, 1})};
  CHECK(json_of(one) == R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})");
  CHECK(json_of(one, &metadata) == R"({"__metadata__":{"format":"pt"},)"
                                   R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})");
  CHECK(json_of(one, &empty).starts_with(R"({"__metadata__":{},"a":)"));
}

TEST_CASE("a shape views a vector or span, and copies a list") {
  using safetensors::Shape;
  const std::vector<std::uint64_t> axes = {2, 3};
  CHECK(Shape(axes).data() == axes.data());
  CHECK(Shape(std::span(axes).last(1)).data() == axes.data() + 1);
  CHECK(Shape().empty());
  std::vector<safetensors::TensorSpec> specs;
  for (std::uint64_t rows = 0; rows < 9; ++rows) specs.push_back({"a", {rows, 3}, Dtype::kU8});
  for (std::uint64_t rows = 0; rows < 9; ++rows) {  // kept, also where the vector has moved them
    const Shape& shape = specs[rows].shape;
    REQUIRE(shape.size() == 2);
    CHECK(shape[0] == rows);
    CHECK(shape[1] == 3);
  }
  Shape copy = specs[8].shape;
  specs.clear();
  copy = Shape(copy);
  CHECK(std::ranges::equal(copy, std::vector<std::uint64_t>{8, 3}));
  static_assert(!std::is_constructible_v<Shape, std::vector<std::uint64_t>>);
  static_assert(!std::is_constructible_v<Shape, const std::vector<std::int64_t>&>);
}

TEST_CASE("tensor_data refuses what plan_layout would refuse, with the same error") {
  const std::vector<std::uint8_t> values(5);
  const auto error_of = [&](const char* name, const safetensors::Shape& shape) {
    const TensorData tensor{name, shape, std::as_bytes(std::span(values)), Dtype::kU8};
    const std::string planned = test::error_of([&] { (void)plan_layout({&tensor, 1}); }).what();
    const safetensors::Error made =
        test::error_of([&] { (void)safetensors::tensor_data(name, shape, values); });
    CHECK(made.what() == planned);
    CHECK(made.subject() == name);
    return planned;
  };
  CHECK(error_of("w", {2, 3}).ends_with("`w`: U8 [2, 3] takes 6 bytes, 5 are given"));
  CHECK(error_of("w", {}).ends_with("`w`: U8 [] takes 1 byte, 5 are given"));
  CHECK(error_of("__metadata__", {5}).starts_with("a tensor cannot be named"));
  CHECK(safetensors::tensor_data("w", {5, 1}, values).bytes.size() == 5);
}

TEST_CASE("tensors are sorted by dtype, then by the bytes of their names") {
  std::vector<OwnTensor> tensors;
  for (const std::string name : {"b", "B", "\xC3\xA9", "a", "aa", ""}) {
    for (std::size_t i = safetensors::all_dtypes().size(); i-- > 0;) {
      const Dtype dtype = safetensors::all_dtypes()[i];
      tensors.push_back(
          test::tensor_of(name + "." + std::string(safetensors::name(dtype)), dtype, {4}));
    }
  }
  const LayoutPlan plan = plan_layout(test::views_of(tensors));
  REQUIRE(plan.order.size() == tensors.size());
  std::uint64_t nbytes = plan.prologue.size();
  for (std::size_t i = 0; i < plan.order.size(); ++i) {
    const OwnTensor& tensor = tensors[plan.order[i]];
    nbytes += tensor.bytes.size();
    if (i == 0) continue;
    const OwnTensor& before = tensors[plan.order[i - 1]];
    CHECK((before.dtype < tensor.dtype ||
           (before.dtype == tensor.dtype && before.name < tensor.name)));
  }
  CHECK(plan.total_nbytes == nbytes);
  CHECK(tensors[plan.order[0]].name == ".U64");
  CHECK(tensors[plan.order.back()].name == "\xC3\xA9.BOOL");
}

TEST_CASE("the same input in any order gives the same file") {
  std::vector<OwnTensor> tensors = test::some_tensors();
  const Metadata metadata = {{"b", "1"}, {"a", "2"}, {"", "3"}};
  const auto file_of = [&] {
    const safetensors::Buffer file = safetensors::serialize(test::views_of(tensors), &metadata);
    return test::text_of(file.bytes());
  };
  const std::string file = file_of();
  std::sort(tensors.begin(), tensors.end(),
            [](const OwnTensor& a, const OwnTensor& b) { return a.name < b.name; });
  do {
    if (file_of() != file) FAIL("another file");
  } while (std::next_permutation(
      tensors.begin(), tensors.end() - 3,
      [](const OwnTensor& a, const OwnTensor& b) { return a.name < b.name; }));
  CHECK(file.find(R"("__metadata__":{"":"3","a":"2","b":"1"})") != std::string::npos);
  CHECK(test::roundtrip_difference(safetensors::parse_bytes(test::bytes_of(file))) == "");
}

TEST_CASE("the header is padded to 8 with spaces, whatever its length") {
  for (std::size_t size = 0; size < 20; ++size) {
    const std::string name(size, 'n');
    CHECK(json_of_name(name) ==
          "{\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})");
  }
}

TEST_CASE("the data begins where it is wanted, or whole blocks later") {
  const std::vector<std::uint64_t> shape = {8};
  const auto begin_of = [&](std::size_t count, std::uint64_t wanted) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) names.push_back("tensor" + std::to_string(i));
    std::vector<safetensors::TensorSpec> specs;
    for (const std::string& name : names) specs.push_back({name, shape, Dtype::kF32});
    const LayoutPlan plan =
        safetensors::plan_file(specs, nullptr, safetensors::Layout::kGiven, wanted);
    CHECK(plan.prologue.substr(0, 8) == test::length_bytes(plan.prologue.size() - 8));
    CHECK(plan.total_nbytes == plan.prologue.size() + 32 * count);
    if (count != 0) CHECK(plan.places.front().begin == plan.prologue.size());
    return plan.prologue.size();
  };
  CHECK(begin_of(1, 0) % 8 == 0);
  CHECK(begin_of(0, 10) == 10);
  CHECK(begin_of(0, 9) == 9 + 4096);  // "{}" and its length take 10
  CHECK(begin_of(1, 104) == 104);
  CHECK(begin_of(1, 1003) == 1003);  // what another program wrote need not be aligned
  CHECK(begin_of(1, 50'000) == 50'000);
  CHECK(begin_of(100, 104) == 104 + 2 * 4096);
  CHECK(begin_of(100, 104 + 2 * 4096) == 104 + 2 * 4096);
  for (const std::uint64_t wanted : {std::uint64_t{101'000'000}, ~std::uint64_t{0}}) {
    CHECK(test::outcome_of([&] { (void)begin_of(1, wanted); }) == "kHeaderTooLarge");
  }
}

TEST_CASE("only characters that JSON requires are escaped") {
  const auto escaped = [](std::string_view name) {
    const std::string json = json_of_name(name);
    return json.substr(2, json.find("\":{") - 2);
  };
  CHECK(escaped("\"") == "\\\"");
  CHECK(escaped("\\") == "\\\\");
  CHECK(escaped("\b\t\n\f\r") == "\\b\\t\\n\\f\\r");
  CHECK(escaped("a/b") == "a/b");
  CHECK(escaped("\x7F\xC3\xA9\xF0\x9F\x98\x80") == "\x7F\xC3\xA9\xF0\x9F\x98\x80");
  CHECK(escaped(std::string_view("\0\x01\x0B\x1F", 4)) == "\\u0000\\u0001\\u000b\\u001f");
  CHECK(escaped("<>&'\xE2\x80\xA8") == "<>&'\xE2\x80\xA8");
}

TEST_CASE("all ASCII characters survive in names and metadata") {
  std::string all;
  for (int c = 0; c < 0x80; ++c) all += static_cast<char>(c);
  const Metadata metadata = {{all, all + "v"}};
  const std::vector<OwnTensor> tensors = {test::tensor_of(all, Dtype::kU8, {1})};
  const auto file = safetensors::serialize(test::views_of(tensors), &metadata);
  const auto parsed = safetensors::parse_bytes(file.bytes());
  CHECK(parsed.header.find(all) != nullptr);
  REQUIRE(parsed.header.metadata().size() == 1);
  CHECK(parsed.header.metadata()[0].first == all);
  CHECK(parsed.header.metadata()[0].second == all + "v");
}

TEST_CASE("invalid shapes, names and pointers are refused") {
  const std::vector<std::byte> bytes(8);
  const std::vector<std::uint64_t> two = {2};
  const std::vector<std::uint64_t> three = {3};
  const std::vector<std::uint64_t> huge = {std::uint64_t{1} << 61};
  const std::vector<std::uint64_t> wraps = {(std::uint64_t{1} << 62) + 2, 4};
  CHECK(outcome({"a", two, bytes, Dtype::kF32}) == "ok");
  CHECK(outcome({"a", three, bytes, Dtype::kF32}) == "kInvalidTensorInfo");
  CHECK(outcome({"a", two, {}, Dtype::kF32}) == "kInvalidTensorInfo");
  CHECK(outcome({"a", {}, bytes, Dtype::kF64}) == "ok");
  CHECK(outcome({"a", {}, bytes, Dtype::kF32}) == "kInvalidTensorInfo");
  CHECK(outcome({"a", huge, bytes, Dtype::kU8}) == "kOverflow");
  CHECK(outcome({"a", wraps, bytes, Dtype::kU8}) == "kOverflow");
  CHECK(outcome({"a", three, bytes, Dtype::kF4}) == "kMisalignedSlice");
  CHECK(outcome({"a", three, bytes, Dtype::kF6E3M2}) == "kMisalignedSlice");
  CHECK(outcome({"__metadata__", two, bytes, Dtype::kF32}) == "kInvalidArgument");
  CHECK(outcome({"\xFF", two, bytes, Dtype::kF32}) == "kInvalidArgument");
  CHECK(outcome({"\xED\xA0\x80", two, bytes, Dtype::kF32}) == "kInvalidArgument");
  const std::span<const std::byte> null(static_cast<const std::byte*>(nullptr), 8);
  CHECK(outcome({"a", two, null, Dtype::kF32}) == "kInvalidArgument");
}

TEST_CASE("an invalid dtype is refused, and the error names the tensor") {
  const std::vector<std::uint64_t> shape = {0};
  const TensorData tensor{"weight", shape, {}, static_cast<Dtype>(99)};
  const auto error = test::error_of([&] { (void)plan_layout({&tensor, 1}); });
  CHECK(test::name_of(error.code()) == "kUnsupportedDtype");
  CHECK(std::string(error.what()) == "tensor `weight`: no dtype has the value 99");
  CHECK(test::outcome_of([&] { (void)safetensors::serialize({&tensor, 1}); }) ==
        "kUnsupportedDtype");
  const test::TempDir folder;
  CHECK(test::outcome_of([&] { safetensors::save_file({&tensor, 1}, folder / "f"); }) ==
        "kUnsupportedDtype");
  CHECK(folder.count() == 0);
}

TEST_CASE("a name that occurs twice is refused") {
  const auto twice = [](const OwnTensor& a, const OwnTensor& b) {
    const std::vector<OwnTensor> tensors = {a, test::tensor_of("c", Dtype::kF16, {2}), b};
    return test::outcome_of([&] { (void)plan_layout(test::views_of(tensors)); });
  };
  const OwnTensor a = test::tensor_of("a", Dtype::kU8, {2});
  CHECK(twice(a, a) == "kDuplicateName");
  CHECK(twice(a, test::tensor_of("a", Dtype::kU64, {2})) == "kDuplicateName");
  CHECK(twice(a, test::tensor_of("a", Dtype::kF16, {2})) == "kDuplicateName");
  CHECK(twice(a, test::tensor_of("b", Dtype::kU64, {2})) == "ok");
}

TEST_CASE("metadata that is not UTF-8 is refused") {
  for (const Metadata& metadata : {Metadata{{"\xFF", ""}}, Metadata{{"", "\xFF"}}}) {
    CHECK(test::outcome_of([&] { (void)plan_layout({}, &metadata); }) == "kInvalidArgument");
  }
}

TEST_CASE("sizes whose sum exceeds 2^64 are refused") {
  // Only planned: nothing reads the bytes, which are not there.
  const std::byte byte{};
  const std::uint64_t nbytes = (std::uint64_t{1} << 61) - 1;
  if constexpr (sizeof(std::size_t) == 8) {
    const std::vector<std::uint64_t> shape = {nbytes};
    std::vector<TensorData> tensors;
    for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i"}) {
      const std::span<const std::byte> bytes(&byte, static_cast<std::size_t>(nbytes));
      tensors.push_back({name, shape, bytes, Dtype::kU8});
    }
    CHECK(test::outcome_of([&] { (void)plan_layout(tensors); }) == "kOverflow");
    tensors.resize(8);  // the data fits, the file with its header does not
    CHECK(test::outcome_of([&] { (void)plan_layout(tensors); }) == "kOverflow");
    tensors.resize(7);
    CHECK(plan_layout(tensors).total_nbytes > 7 * nbytes);
  }
}

TEST_CASE("a header above the limit is refused, not written") {
  const Metadata metadata = {{"k", std::string(safetensors::kMaxHeaderSize, 'v')}};
  CHECK(test::outcome_of([&] { (void)plan_layout({}, &metadata); }) == "kHeaderTooLarge");
}

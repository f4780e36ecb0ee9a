#include <doctest/doctest.h>

#include <bit>
#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "safetensors/tensor_view.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::Index;
using safetensors::TensorView;

namespace {

constexpr bool kIsLittleEndian = std::endian::native == std::endian::little;

/// Returns a view of `bytes` from `skip` on.
TensorView view_of(Dtype dtype, std::span<std::byte> bytes, std::size_t skip = 0) {
  return {"t", dtype, {}, bytes.subspan(skip), nullptr, nullptr};
}

template <typename T>
std::string outcome(Dtype dtype, std::size_t skip = 0) {
  alignas(16) std::byte bytes[32] = {};
  const TensorView view = view_of(dtype, std::span(bytes).first(16 + skip), skip);
  return test::outcome_of([&] { (void)view.data<T>(); });
}

}  // namespace

TEST_CASE("elements are read in place") {
  std::vector<float> values = {1.5F, -2.0F, 3.25F};
  const TensorView view = view_of(Dtype::kF32, std::as_writable_bytes(std::span(values)));
  if (!kIsLittleEndian) {
    const test::ErrorCode code = test::error_of([&] { (void)view.data<float>(); }).code();
    CHECK(code == test::ErrorCode::kInvalidArgument);
    return;
  }
  const std::span<const float> data = view.data<float>();
  REQUIRE(data.size() == 3);
  CHECK(data[2] == 3.25F);
  CHECK(static_cast<const void*>(data.data()) == values.data());
  CHECK(view.nbytes() == 12);
  view.writable_bytes()[3] = std::byte{0xBF};  // -1.5, little-endian
  CHECK(data[0] == -1.5F);
}

TEST_CASE("a wrong type and unaligned bytes are refused") {
  // Elements of several bytes cannot be looked at in place where the order is another.
  const std::string in_place = kIsLittleEndian ? "ok" : "kInvalidArgument";
  CHECK(outcome<float>(Dtype::kF32) == in_place);
  CHECK(outcome<float>(Dtype::kF64) == "kInvalidArgument");
  CHECK(outcome<std::int32_t>(Dtype::kF32) == "kInvalidArgument");
  CHECK(outcome<std::int16_t>(Dtype::kBF16) == "kInvalidArgument");
  CHECK(outcome<std::uint8_t>(Dtype::kF4) == "kInvalidArgument");
  CHECK(outcome<bool>(Dtype::kU8) == "kInvalidArgument");
  CHECK(outcome<float>(Dtype::kF32, 4) == in_place);
  CHECK(outcome<float>(Dtype::kF32, 1) == "kInvalidArgument");
  CHECK(outcome<double>(Dtype::kF64, 4) == "kInvalidArgument");
  CHECK(outcome<std::uint8_t>(Dtype::kU8, 1) == "ok");
}

TEST_CASE("a view with an invalid dtype has no elements but can be read as bytes") {
  std::byte bytes[8] = {};
  const TensorView view = view_of(static_cast<Dtype>(99), bytes);
  CHECK(view.element_count() == 0);
  CHECK(view.data<std::byte>().size() == 8);
  CHECK(std::string(test::error_of([&] { (void)view.data<float>(); }).what())
            .starts_with("tensor `t` (dtype 99) does not hold elements of type float"));
  CHECK(test::outcome_of([&] { (void)view.slice({Index::ellipsis()}); }) == "kUnsupportedDtype");
}

TEST_CASE("copy_to: aligned or not, the right size only") {
  const std::vector<std::uint32_t> values = {1, 2, 0xFFFFFFFF};
  std::vector<std::byte> bytes(13, std::byte{0xFF});
  for (const std::size_t zero : {2U, 3U, 4U, 6U, 7U, 8U}) bytes[zero] = std::byte{0};
  bytes[1] = std::byte{1};
  bytes[5] = std::byte{2};
  const TensorView view = view_of(Dtype::kU32, bytes, 1);
  std::vector<std::uint32_t> copied(3);
  view.copy_to(std::span(copied));
  CHECK(copied == values);
  std::vector<std::uint32_t> more(4);
  CHECK(test::outcome_of([&] { view.copy_to(std::span(more)); }) == "kInvalidArgument");
  std::vector<std::int32_t> other(3);
  CHECK(test::outcome_of([&] { view.copy_to(std::span(other)); }) == "kInvalidArgument");
  const TensorView none = view_of(Dtype::kU32, {});
  none.copy_to(std::span<std::uint32_t>());
  if (kIsLittleEndian) CHECK(none.data<std::uint32_t>().empty());
}

TEST_CASE("copy_to gives the same values on machines of both byte orders") {
  std::vector<std::byte> bytes;
  for (const int byte : {0x00, 0x00, 0x80, 0x3F, 0x00, 0x00, 0x00, 0xC0}) {
    bytes.push_back(static_cast<std::byte>(byte));
  }
  std::vector<float> floats(2);
  view_of(Dtype::kF32, bytes).copy_to(std::span(floats));
  CHECK(floats == std::vector<float>{1.0F, -2.0F});
  std::vector<std::complex<float>> complex(1);
  view_of(Dtype::kC64, bytes).copy_to(std::span(complex));
  CHECK(complex[0] == std::complex<float>(1.0F, -2.0F));
  std::vector<std::uint64_t> integers(1);
  view_of(Dtype::kU64, bytes).copy_to(std::span(integers));
  CHECK(integers[0] == 0xC0000000'3F800000);
}

template <typename T>
concept IsCopied = requires(const TensorView& view) { view.to_vector<T>(); };

TEST_CASE("to_vector copies a tensor, also a temporary one") {
  std::vector<std::byte> bytes(13, std::byte{0});
  bytes[1] = std::byte{1};
  bytes[9] = std::byte{2};
  CHECK(view_of(Dtype::kU32, bytes, 1).to_vector<std::uint32_t>() ==
        std::vector<std::uint32_t>{1, 0, 2});  // unaligned
  CHECK(view_of(Dtype::kF4, bytes, 1).to_vector<std::byte>() ==
        std::vector<std::byte>(bytes.begin() + 1, bytes.end()));
  CHECK(view_of(Dtype::kU32, {}).to_vector<std::uint32_t>().empty());
  const std::string text =
      test::error_of([&] { (void)view_of(Dtype::kU32, bytes, 1).to_vector<float>(); }).what();
  CHECK(text == "tensor `t` (U32) does not hold elements of type float");
  static_assert(IsCopied<double> && !IsCopied<bool> && !IsCopied<char>);
}

TEST_CASE("to_float of a tensor returns its floats") {
  std::vector<std::byte> bytes = {std::byte{0x80}, std::byte{0x3F}, std::byte{0x00},
                                  std::byte{0xC0}};
  CHECK(safetensors::to_float(view_of(Dtype::kBF16, bytes)) == std::vector<float>{1.0F, -2.0F});
  CHECK(safetensors::to_float(view_of(Dtype::kF4, bytes)).size() == 8);
  CHECK(safetensors::to_float(view_of(Dtype::kF32, {})).empty());
  const safetensors::Error error =
      test::error_of([&] { (void)safetensors::to_float(view_of(Dtype::kI16, bytes)); });
  CHECK(error.code() == test::ErrorCode::kUnsupportedDtype);
  CHECK(error.subject() == "t");
}

TEST_CASE("a slice with contiguous bytes is a view, others can be copied") {
  std::vector<std::uint8_t> values(24);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i);
  const std::vector<std::uint64_t> shape = {4, 6};
  auto owner = std::make_shared<int>(1);
  const auto make = [&] {
    return TensorView("t", Dtype::kU8, shape, std::as_writable_bytes(std::span(values)), nullptr,
                      owner);
  };
  const TensorView view = make();
  CHECK(view.element_count() == 24);

  const auto rows = make().slice({Index::slice(1, 3)});  // of a temporary, which it outlives
  REQUIRE(rows.has_value());
  CHECK(std::vector<std::uint64_t>(rows->shape.begin(), rows->shape.end()) ==
        std::vector<std::uint64_t>{2, 6});
  CHECK(rows->data<std::uint8_t>()[0] == 6);
  CHECK(rows->owner() == owner);
  const auto part = rows->slice({Index::at(-1), Index::slice(2, 4)});
  REQUIRE(part.has_value());
  CHECK(part->shape.size() == 1);
  CHECK(part->data<std::uint8_t>()[1] == 15);
  CHECK(view.slice({})->nbytes() == 24);
  CHECK(view.slice({Index::slice(2, 2)})->nbytes() == 0);

  CHECK_FALSE(view.slice({Index::all(), Index::at(0)}).has_value());
  CHECK_FALSE(view.slice({Index::slice({}, {}, 2)}).has_value());
  std::vector<std::uint8_t> column(4);
  view.copy_slice_to({Index::all(), Index::at(-1)}, std::span(column));
  CHECK(column == std::vector<std::uint8_t>{5, 11, 17, 23});
  std::vector<std::uint8_t> steps(6);
  const std::vector<Index> indices = {Index::slice({}, {}, 2), Index::slice(0, {}, 2)};
  view.copy_slice_to(indices, std::span(steps));
  CHECK(steps == std::vector<std::uint8_t>{0, 2, 4, 12, 14, 16});
  const auto copy = [&](auto span, std::initializer_list<Index> taken) {
    return test::outcome_of([&] { view.copy_slice_to(taken, span); });
  };
  CHECK(copy(std::span(steps), {Index::at(0)}) == "ok");
  CHECK(copy(std::span(steps), {Index::at(4)}) == "kIndexOutOfBounds");
  CHECK(copy(std::span(steps), {Index::slice(0, 2)}) == "kInvalidArgument");
  std::vector<float> floats(3);
  CHECK(copy(std::span(floats), {Index::at(0)}) == "kInvalidArgument");
}

TEST_CASE("a view keeps its memory alive") {
  auto names = std::make_shared<int>(1);
  auto bytes = std::make_shared<int>(2);
  {
    const TensorView view{"t", Dtype::kU8, {}, {}, names, bytes};
    const TensorView copy = view;  // NOLINT: the copy's share is the point
    CHECK(names.use_count() == 3);
    CHECK(bytes.use_count() == 3);
    CHECK(copy.owner() == bytes);
  }
  CHECK(names.use_count() == 1);
  CHECK(bytes.use_count() == 1);
  static_assert(std::is_copy_assignable_v<TensorView>);
}

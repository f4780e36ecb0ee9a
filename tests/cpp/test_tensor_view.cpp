#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "safetensors/tensor_view.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::holds;
using safetensors::TensorView;

namespace {

/// A view of `bytes` from `skip` on.
TensorView view_of(Dtype dtype, std::span<std::byte> bytes, std::size_t skip = 0) {
  return {"t", dtype, {}, bytes.subspan(skip), nullptr, nullptr};
}

template <typename T>
std::string outcome(Dtype dtype, std::size_t skip = 0) {
  alignas(16) std::byte bytes[32] = {};
  const TensorView view = view_of(dtype, std::span(bytes).first(16 + skip), skip);
  return test::outcome_of([&] { (void)view.data<T>(); });
}

/// The dtypes that hold T, by name.
template <typename T>
std::string held() {
  std::string names;
  for (const Dtype dtype : safetensors::all_dtypes()) {
    if (holds<T>(dtype)) names += std::string(safetensors::name(dtype)) + " ";
  }
  return names;
}

}  // namespace

TEST_CASE("which types are which dtypes") {
  CHECK(held<double>() == "F64 ");
  CHECK(held<float>() == "F32 ");
  CHECK(held<std::complex<float>>() == "C64 ");
  CHECK(held<std::complex<double>>() == "");
  CHECK(held<std::int64_t>() == "I64 ");
  CHECK(held<std::int32_t>() == "I32 ");
  CHECK(held<std::int16_t>() == "I16 ");
  CHECK(held<std::int8_t>() == "I8 ");
  CHECK(held<std::uint64_t>() == "U64 ");
  CHECK(held<unsigned long long>() == "U64 ");
  CHECK(held<std::uint32_t>() == "U32 ");
  CHECK(held<std::uint16_t>() == "U16 ");
  CHECK(held<std::uint8_t>() == "U8 ");
  CHECK(held<std::byte>() == "U8 ");
  CHECK(held<bool>() == "BOOL ");
  CHECK(held<long double>() == "");
}

TEST_CASE("the elements") {
  std::vector<float> values = {1.5F, -2.0F, 3.25F};
  const TensorView view = view_of(Dtype::kF32, std::as_writable_bytes(std::span(values)));
  const std::span<const float> data = view.data<float>();
  REQUIRE(data.size() == 3);
  CHECK(data[2] == 3.25F);
  CHECK(static_cast<const void*>(data.data()) == values.data());
  CHECK(view.nbytes() == 12);
  view.writable_bytes()[3] = std::byte{0xBF};  // -1.5, little-endian
  CHECK(data[0] == -1.5F);
}

TEST_CASE("another type, or bytes that are not aligned for it, are refused") {
  CHECK(outcome<float>(Dtype::kF32) == "ok");
  CHECK(outcome<float>(Dtype::kF64) == "kInvalidArgument");
  CHECK(outcome<std::int32_t>(Dtype::kF32) == "kInvalidArgument");
  CHECK(outcome<std::uint16_t>(Dtype::kBF16) == "kInvalidArgument");
  CHECK(outcome<std::uint8_t>(Dtype::kF4) == "kInvalidArgument");
  CHECK(outcome<bool>(Dtype::kU8) == "kInvalidArgument");
  CHECK(outcome<float>(Dtype::kF32, 4) == "ok");
  CHECK(outcome<float>(Dtype::kF32, 1) == "kInvalidArgument");
  CHECK(outcome<double>(Dtype::kF64, 4) == "kInvalidArgument");
  CHECK(outcome<std::uint8_t>(Dtype::kU8, 1) == "ok");
}

TEST_CASE("copy_to: aligned or not, the right size only") {
  const std::vector<std::uint32_t> values = {1, 2, 0xFFFFFFFF};
  std::vector<std::byte> bytes(13);
  std::memcpy(bytes.data() + 1, values.data(), 12);
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
  CHECK(none.data<std::uint32_t>().empty());
}

TEST_CASE("copy_to gives the values that the file's bytes mean, on every machine") {
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

TEST_CASE("a view keeps what it is a view of") {
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

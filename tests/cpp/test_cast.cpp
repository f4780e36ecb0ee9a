#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "safetensors/cast.hpp"
#include "safetensors/safetensors.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::ErrorCode;

namespace {

template <typename Value>
std::vector<std::byte> stored(const std::vector<Value>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

void check_error(const auto& work, ErrorCode code, const std::string& says) {
  const safetensors::Error error = test::error_of(work);
  CHECK(error.code() == code);
  CHECK_MESSAGE(std::string(error.what()).find(says) != std::string::npos, error.what());
}

}  // namespace

TEST_CASE("cast_elements goes by way of a float") {
  if constexpr (std::endian::native != std::endian::little) return;
  const std::vector<double> values{1.5, -1e300, 65504.0, 1e-300};
  std::vector<std::byte> halves(values.size() * 2);
  safetensors::cast_elements(Dtype::kF64, stored(values), Dtype::kF16, halves);
  CHECK(halves == stored(std::vector<std::uint16_t>{0x3E00, 0xFC00, 0x7BFF, 0}));
  std::vector<std::byte> wide(values.size() * 8);
  safetensors::cast_elements(Dtype::kF16, halves, Dtype::kF64, wide);
  CHECK(wide ==
        stored(std::vector<double>{1.5, -std::numeric_limits<double>::infinity(), 65504.0, 0.0}));
}

TEST_CASE("cast_elements reads integers, booleans and F4") {
  if constexpr (std::endian::native != std::endian::little) return;
  const auto doubles = [](Dtype dtype, const std::vector<std::byte>& from) {
    std::vector<double> to(from.size() * 8 / safetensors::bit_size(dtype));
    safetensors::cast_elements(dtype, from, Dtype::kF64, std::as_writable_bytes(std::span(to)));
    return to;
  };
  constexpr std::int64_t kExact = (std::int64_t{1} << 53) - 1;  // a float does not hold it
  CHECK(doubles(Dtype::kI64, stored<std::int64_t>({kExact, -kExact})) ==
        std::vector<double>{static_cast<double>(kExact), -static_cast<double>(kExact)});
  CHECK(doubles(Dtype::kU64, stored<std::uint64_t>({UINT64_MAX})) ==
        std::vector<double>{18446744073709551616.0});
  CHECK(doubles(Dtype::kI32, stored<std::int32_t>({INT32_MIN, INT32_MAX})) ==
        std::vector<double>{-2147483648.0, 2147483647.0});
  CHECK(doubles(Dtype::kU32, stored<std::uint32_t>({UINT32_MAX})) ==
        std::vector<double>{4294967295.0});
  CHECK(doubles(Dtype::kI16, stored<std::int16_t>({-32768})) == std::vector<double>{-32768});
  CHECK(doubles(Dtype::kU16, stored<std::uint16_t>({65535})) == std::vector<double>{65535});
  CHECK(doubles(Dtype::kI8, stored<std::int8_t>({-128, 1})) == std::vector<double>{-128, 1});
  CHECK(doubles(Dtype::kU8, stored<std::uint8_t>({255})) == std::vector<double>{255});
  CHECK(doubles(Dtype::kBool, stored<std::uint8_t>({0, 1, 7})) == std::vector<double>{0, 1, 1});
  CHECK(doubles(Dtype::kF4, stored<std::uint8_t>({0xF2})) == std::vector<double>{1, -6});
  std::vector<std::byte> halves(2);
  safetensors::cast_elements(Dtype::kI32, stored<std::int32_t>({-3}), Dtype::kBF16, halves);
  CHECK(halves == stored<std::uint16_t>({0xC040}));
  const auto same = stored<double>({1e-300, 1.0 / 3});
  std::vector<std::byte> copy(16);
  safetensors::cast_elements(Dtype::kF64, same, Dtype::kF64, copy);
  CHECK(copy == same);
}

TEST_CASE("cast_elements refuses other dtypes and sizes") {
  std::vector<std::byte> from(8);
  std::vector<std::byte> to(8);
  for (const Dtype dtype : {Dtype::kC64, Dtype::kF6E2M3, Dtype::kF6E3M2, Dtype{99}}) {
    check_error([&] { safetensors::cast_elements(dtype, from, Dtype::kF32, to); },
                ErrorCode::kUnsupportedDtype, " cannot be cast to F32: no cast reads it");
  }
  check_error([&] { safetensors::cast_elements(Dtype::kF32, from, Dtype::kBool, to); },
              ErrorCode::kUnsupportedDtype, "F32 cannot be cast to BOOL");
  check_error([&] { safetensors::cast_elements(Dtype::kF32, from, Dtype::kF16, to); },
              ErrorCode::kInvalidArgument, "not as many elements");
}

TEST_CASE("copy_cast writes a tensor of several pieces, and one without elements") {
  if constexpr (std::endian::native != std::endian::little) return;
  const test::TempDir folder;
  constexpr std::size_t kCount = (std::size_t{1} << 19) * 2 + 3;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 2048);
  const std::vector<std::byte> bytes = stored(values);
  const safetensors::MemorySource source(bytes);
  const std::array<std::uint64_t, 1> shape{kCount};
  const std::array<std::uint64_t, 1> none{0};
  const std::vector<safetensors::TensorSpec> specs{{"a", shape, Dtype::kF16},
                                                   {"b", none, Dtype::kF16}};
  safetensors::FileWriter writer(safetensors::make_file_sink(folder / "f"),
                                 safetensors::plan_file(specs));
  safetensors::copy_cast(writer, source, {{0, 0}, kCount, Dtype::kF32, Dtype::kF16});
  safetensors::copy_cast(writer, source, {{1, 0}, 0, Dtype::kF32, Dtype::kF16});
  writer.commit();
  const safetensors::SafeOpen file(folder / "f");
  std::vector<float> back(kCount);
  const safetensors::TensorView written = file.get_tensor("a");
  safetensors::to_float(Dtype::kF16, written.bytes(), back);
  CHECK(back == values);
}

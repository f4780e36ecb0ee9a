#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "safetensors/from_float.hpp"
#include "safetensors/to_float.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::ErrorCode;

namespace {

/// Counts the floats that are not rounded to the nearest of two neighbouring codes, ties to even.
///
/// Rounding is monotonic, so a converter is right for all floats if it is right at every code, half
/// way to the next one, and one float to both sides of that. `last` is the largest finite code, and
/// `beyond` what the value after it would be, which rounds to `overflow`.
template <typename Bits>
int wrong_roundings(Bits (*narrow)(float), float (*widen)(Bits), unsigned last, double beyond,
                    unsigned overflow) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  int wrong = 0;
  const auto expect = [&](float value, unsigned code) {
    if (narrow(value) != code) ++wrong;
    if (narrow(-value) != (code | kSign)) ++wrong;
  };
  for (unsigned code = 0; code <= last; ++code) {
    const unsigned next = code == last ? overflow : code + 1;
    const double low = widen(static_cast<Bits>(code));
    const double high = code == last ? beyond : widen(static_cast<Bits>(next));
    const auto half = static_cast<float>((low + high) / 2);
    expect(static_cast<float>(low), code);
    expect(std::nextafter(half, 0.0F), code);
    expect(half, code % 2 == 0 ? code : next);
    expect(std::nextafter(half, std::numeric_limits<float>::infinity()), next);
  }
  expect(std::numeric_limits<float>::infinity(), overflow);
  expect(std::numeric_limits<float>::max(), overflow);
  return wrong;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void check_error(const auto& work, ErrorCode code, const std::string& says) {
  const safetensors::Error error = test::error_of(work);
  CHECK(error.code() == code);
  CHECK_MESSAGE(std::string(error.what()).find(says) != std::string::npos, error.what());
}

}  // namespace

TEST_CASE("floats are rounded to the nearest element, ties to even") {
  using namespace safetensors;  // NOLINT(google-build-using-namespace)
  const double two_128 = std::ldexp(1.0, 128);
  CHECK(wrong_roundings<std::uint16_t>(float_to_bf16, bf16_to_float, 0x7F7F, two_128, 0x7F80) == 0);
  CHECK(wrong_roundings<std::uint16_t>(float_to_f16, f16_to_float, 0x7BFF, 65536, 0x7C00) == 0);
  CHECK(wrong_roundings<std::uint8_t>(float_to_f8_e5m2, f8_e5m2_to_float, 0x7B, 65536, 0x7C) == 0);
  CHECK(wrong_roundings<std::uint8_t>(float_to_f8_e4m3, f8_e4m3_to_float, 0x7E, 480, 0x7E) == 0);
}

TEST_CASE("a NaN becomes a NaN of the same sign") {
  for (const float nan : {kNan, -kNan, std::bit_cast<float>(0x7F800001U)}) {
    const bool sign = std::signbit(nan);
    const float bf16 = safetensors::bf16_to_float(safetensors::float_to_bf16(nan));
    const float f16 = safetensors::f16_to_float(safetensors::float_to_f16(nan));
    const float e5m2 = safetensors::f8_e5m2_to_float(safetensors::float_to_f8_e5m2(nan));
    const float e4m3 = safetensors::f8_e4m3_to_float(safetensors::float_to_f8_e4m3(nan));
    for (const float got : {bf16, f16, e5m2, e4m3}) {
      CHECK(std::isnan(got));
      CHECK(std::signbit(got) == sign);
    }
  }
}

TEST_CASE("from_float and to_float give the same elements back, also from odd addresses") {
  const std::vector<float> values{0.0F, -0.0F, 1.0F, -2.5F, 448.0F, kNan};
  for (const Dtype dtype :
       {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF8E5M2, Dtype::kF8E4M3}) {
    std::vector<std::byte> room(values.size() * safetensors::bit_size(dtype) / 8 + 1);
    const std::span<std::byte> bytes = std::span(room).subspan(1);
    safetensors::from_float(dtype, values, bytes);
    std::vector<float> back(values.size());
    safetensors::to_float(dtype, bytes, back);
    CHECK(std::isnan(back.back()));
    CHECK(std::signbit(back[1]));
    CHECK(std::vector(back.begin(), back.end() - 2) ==
          std::vector(values.begin(), values.end() - 2));
  }
}

TEST_CASE("from_float refuses other dtypes and sizes") {
  const std::vector<float> values(2);
  std::vector<std::byte> room(8);
  check_error([&] { safetensors::from_float(Dtype::kI32, values, room); },
              ErrorCode::kUnsupportedDtype, "I32");
  check_error([&] { safetensors::from_float(Dtype::kF16, values, room); },
              ErrorCode::kInvalidArgument, "2 elements of F16 take 4 bytes");
}

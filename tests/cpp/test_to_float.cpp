#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "safetensors/to_float.hpp"
#include "support.hpp"

using safetensors::Dtype;

namespace {

enum class Specials : std::uint8_t { kIeee, kOnlyNan, kFnuz, kNone };

/// A format by its definition: sign, exponent and mantissa, without arithmetic on bits of floats.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  [[nodiscard]] double value(unsigned code) const {
    const int bits = 1 + exponent_bits + mantissa_bits;
    const unsigned sign_bit = 1U << (bits - 1);
    const unsigned magnitude = code & (sign_bit - 1);
    const unsigned largest_exponent = (1U << exponent_bits) - 1;
    const unsigned exponent = magnitude >> mantissa_bits;
    const unsigned mantissa = magnitude & ((1U << mantissa_bits) - 1);
    double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp(mantissa + (1U << mantissa_bits),
                                              static_cast<int>(exponent) - bias - mantissa_bits);
    if (specials == Specials::kIeee && exponent == largest_exponent) {
      value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    }
    if (specials == Specials::kOnlyNan && magnitude == sign_bit - 1) value = std::nan("");
    if (specials == Specials::kFnuz && code == sign_bit) value = std::nan("");
    return (code & sign_bit) != 0 ? -value : value;
  }
};

constexpr Format kBf16{8, 7, 127, Specials::kIeee};
constexpr Format kF16{5, 10, 15, Specials::kIeee};
constexpr Format kE4M3{4, 3, 7, Specials::kOnlyNan};
constexpr Format kE5M2{5, 2, 15, Specials::kIeee};
constexpr Format kE4M3Fnuz{4, 3, 8, Specials::kFnuz};
constexpr Format kE5M2Fnuz{5, 2, 16, Specials::kFnuz};
constexpr Format kE2M1{2, 1, 1, Specials::kNone};

double e8m0(unsigned code) {
  return code == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(code) - 127);
}

/// Returns whether the bits are equal, or both are NaNs with the same sign.
bool same(float got, double wanted) {
  if (std::isnan(wanted)) return std::isnan(got) && std::signbit(got) == std::signbit(wanted);
  return std::bit_cast<std::uint32_t>(got) ==
         std::bit_cast<std::uint32_t>(static_cast<float>(wanted));
}

bool is_quiet(float value) {
  return !std::isnan(value) || (std::bit_cast<std::uint32_t>(value) & 0x00400000U) != 0;
}

/// Converts each of `count` codes, alone and in bulk from an odd address. Returns how many are
/// wrong.
template <typename Code, typename Scalar, typename Wanted>
int wrong_codes(unsigned count, Dtype dtype, const Scalar& scalar, const Wanted& wanted) {
  std::vector<std::byte> bytes(count * sizeof(Code) + 1);
  for (unsigned code = 0; code < count; ++code) {
    for (unsigned i = 0; i < sizeof(Code); ++i) {
      bytes[1 + code * sizeof(Code) + i] = static_cast<std::byte>(code >> (8 * i));
    }
  }
  std::vector<float> values(count);
  safetensors::to_float(dtype, std::span(bytes).subspan(1), values);
  int wrong = 0;
  for (unsigned code = 0; code < count; ++code) {
    const float value = scalar(static_cast<Code>(code));
    const bool agrees =
        std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(values[code]);
    const bool quiet = dtype == Dtype::kBF16 || is_quiet(value);
    if (!same(value, wanted(code)) || !agrees || !quiet) ++wrong;
  }
  return wrong;
}

template <typename Code, typename Scalar>
int wrong_codes(unsigned count, Dtype dtype, const Scalar& scalar, const Format& format) {
  return wrong_codes<Code>(count, dtype, scalar, [&](unsigned code) { return format.value(code); });
}

}  // namespace

TEST_CASE("every code of the small floats is the value that its format defines") {
  using namespace safetensors;
  CHECK(wrong_codes<std::uint16_t>(65536, Dtype::kBF16, bf16_to_float, kBf16) == 0);
  CHECK(wrong_codes<std::uint16_t>(65536, Dtype::kF16, f16_to_float, kF16) == 0);
  CHECK(wrong_codes<std::uint8_t>(256, Dtype::kF8E4M3, f8_e4m3_to_float, kE4M3) == 0);
  CHECK(wrong_codes<std::uint8_t>(256, Dtype::kF8E5M2, f8_e5m2_to_float, kE5M2) == 0);
  CHECK(wrong_codes<std::uint8_t>(256, Dtype::kF8E4M3FNUZ, f8_e4m3fnuz_to_float, kE4M3Fnuz) == 0);
  CHECK(wrong_codes<std::uint8_t>(256, Dtype::kF8E5M2FNUZ, f8_e5m2fnuz_to_float, kE5M2Fnuz) == 0);
  CHECK(wrong_codes<std::uint8_t>(256, Dtype::kF8E8M0, f8_e8m0_to_float, e8m0) == 0);
}

TEST_CASE("BF16 keeps all bits, also those of a signalling NaN") {
  for (const unsigned code : {0x7F81U, 0xFF81U, 0x7FFFU, 0x8000U}) {
    CHECK(std::bit_cast<std::uint32_t>(
              safetensors::bf16_to_float(static_cast<std::uint16_t>(code))) == code << 16);
  }
}

TEST_CASE("F4: a byte holds two values, the first in its low half") {
  for (unsigned byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    const auto code = static_cast<std::uint8_t>(byte);
    CHECK(same(safetensors::f4_to_float(code), kE2M1.value(byte & 15U)));
    const std::byte stored{code};
    float values[2] = {};
    safetensors::to_float(Dtype::kF4, {&stored, 1}, values);
    CHECK(same(values[0], kE2M1.value(byte & 15U)));
    CHECK(same(values[1], kE2M1.value(byte >> 4)));
  }
}

TEST_CASE("F32 is copied, whatever the machine's byte order") {
  const std::vector<std::byte> bytes = {std::byte{0}, std::byte{0}, std::byte{0xC0},
                                        std::byte{0xBF}};
  float value = 0;
  safetensors::to_float(Dtype::kF32, bytes, {&value, 1});
  CHECK(value == -1.5F);
}

TEST_CASE("other dtypes and other sizes are refused") {
  const std::vector<std::byte> bytes(16);
  std::vector<float> room(64);
  const auto outcome = [&](Dtype dtype, std::size_t nbytes, std::size_t count) {
    return test::outcome_of([&] {
      safetensors::to_float(dtype, std::span(bytes).first(nbytes), std::span(room).first(count));
    });
  };
  std::string converted;
  for (const Dtype dtype : safetensors::all_dtypes()) {
    const std::size_t count = 128 / safetensors::bit_size(dtype);
    if (outcome(dtype, 16, count) == "ok") {
      converted += std::string(safetensors::name(dtype)) + " ";
    } else {
      CHECK(outcome(dtype, 16, count) == "kUnsupportedDtype");
    }
  }
  CHECK(converted == "F32 BF16 F16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 F4 ");
  CHECK(outcome(static_cast<Dtype>(99), 16, 16) == "kUnsupportedDtype");
  CHECK(outcome(Dtype::kF16, 16, 7) == "kInvalidArgument");
  CHECK(outcome(Dtype::kF16, 16, 9) == "kInvalidArgument");
  CHECK(outcome(Dtype::kF16, 15, 7) == "kInvalidArgument");
  CHECK(outcome(Dtype::kF4, 16, 31) == "kInvalidArgument");
  CHECK(outcome(Dtype::kF4, 0, 0) == "ok");
  CHECK(std::string(test::error_of([&] {
                      safetensors::to_float(Dtype::kF16, bytes, room);
                    }).what()) == "16 bytes of F16 are 8 elements, the destination has 64");
}

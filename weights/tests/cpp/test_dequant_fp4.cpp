// Compares E2M1 codes with scales for groups with a plain formula.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "dequant/fp4.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::Fp4Matrices;
using weights::Fp4Scale;

float e2m1(unsigned code) {
  constexpr std::array<float, 8> kMagnitudes{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[code & 7U];
  // The sign of zero is not specified: none here.
  return (code & 8U) != 0 && magnitude != 0 ? -magnitude : magnitude;
}

float e4m3(unsigned code) {
  if ((code & 0x7FU) == 0x7FU) return std::nanf("");
  const auto exponent = static_cast<int>(code >> 3 & 15U);
  const auto fraction = static_cast<float>(code & 7U);
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

float e8m0(unsigned code) {
  return code == 255 ? std::nanf("") : std::ldexp(1.0F, static_cast<int>(code) - 127);
}

/// Removes the sign of zeros.
std::vector<std::byte> without_signs(std::span<const std::byte> bytes, Output output) {
  std::vector<std::byte> result(bytes.begin(), bytes.end());
  const std::size_t size = weights::size_of(output);
  for (std::size_t i = 0; i < result.size(); i += size) {
    // All kinds of zeros: bytes of zeros but for the sign in the last one.
    bool zero = (result[i + size - 1] & std::byte{0x7F}) == std::byte{0};
    for (std::size_t k = 0; k + 1 < size; ++k) zero = zero && result[i + k] == std::byte{0};
    if (zero) result[i + size - 1] = std::byte{0};
  }
  return result;
}

void check(Fp4Scale kind, std::uint64_t rows, std::uint64_t columns, std::uint64_t matrices,
           bool high_first = false) {
  CAPTURE(static_cast<int>(kind));
  CAPTURE(columns);
  const std::uint64_t group = kind == Fp4Scale::e8m0 ? 32 : 16;
  const auto codes = random_bytes(rows * columns / 2, columns);
  const auto scales = random_bytes(rows * columns / group, columns + 1);
  std::vector<float> globals;
  for (std::uint64_t i = 0; i < matrices; ++i) globals.push_back(0.37F + static_cast<float>(i) * 3);
  std::vector<std::byte> stored_globals;
  for (const float global : globals) {
    const auto bits = std::bit_cast<std::uint32_t>(global);
    for (unsigned k = 0; k < 4; ++k) {
      stored_globals.push_back(static_cast<std::byte>(bits >> (8 * k) & 0xFF));
    }
  }
  std::vector<std::byte> expected;
  for (std::uint64_t i = 0; i < rows * columns; ++i) {
    const unsigned byte = std::to_integer<unsigned>(codes[i / 2]);
    const unsigned scale = std::to_integer<unsigned>(scales[i / group]);
    const float global = globals[i / columns / (rows / matrices)];
    float factor = e8m0(scale);
    if (kind == Fp4Scale::e4m3_divided) factor = e4m3(scale) / global;
    if (kind == Fp4Scale::e4m3_multiplied) factor = e4m3(scale) * global;
    const float value = e2m1((i % 2 == 0) != high_first ? byte & 15U : byte >> 4) * factor;
    const auto bytes = std::bit_cast<std::array<std::byte, 4>>(value);
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  for (const Kernels* kernels : weights::usable_kernels()) {
    CAPTURE(std::string(kernels->name));
    for (const Output output : kOutputs) {
      for (const std::uint64_t first : {std::uint64_t{0}, rows / 3}) {
        const Skewed own(tail(codes, first * columns / 2), 1);
        const Skewed own_scales(tail(scales, first * columns / group), 1);
        const Skewed own_globals(stored_globals, 1);
        Fp4Matrices from;
        from.scale = kind;
        from.columns = columns;
        from.high_first = high_first;
        from.codes = {own.data(), first * columns / 2};
        from.scales = {own_scales.data(), first * columns / group};
        from.global_scales = {own_globals.data(), 0};
        from.rows_per_global_scale = rows / matrices;
        const std::size_t size = weights::size_of(output);
        const Skewed to((rows - first) * columns * size, first == 0 ? 0 : 1);
        weights::dequantize_fp4(from, first, rows - first, output, to.data(), {}, *kernels);
        const auto wanted = rounded_all(tail(expected, first * columns * 4), output);
        CHECK(count_differences(without_signs(to.span(), output), without_signs(wanted, output),
                                output) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("E2M1: every kind of scales, rows of any length") {
  for (const Fp4Scale kind : {Fp4Scale::e8m0, Fp4Scale::e4m3_divided, Fp4Scale::e4m3_multiplied}) {
    for (const std::uint64_t columns : {32U, 96U, 2048U, 2080U, 4096U}) check(kind, 6, columns, 2);
  }
  check(Fp4Scale::e4m3_divided, 6, 16, 3);  // a row of one group
  for (const std::uint64_t columns : {16U, 2048U, 2064U}) {
    check(Fp4Scale::e4m3_multiplied, 5, columns, 1, true);
  }
  check(Fp4Scale::e4m3_multiplied, 5, 2064, 1);
}

// Compares rotated integers with a product of matrices.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "dequant/rotated.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::RotatedCodes;
using weights::RotatedRows;

/// Returns the sign of an element of kron(h, h, ...): -1 for each digit in base 4 where h has -1.
int sign_of(std::uint64_t row, std::uint64_t column, std::uint64_t size) {
  int sign = 1;
  for (; size > 1; size /= 4, row /= 4, column /= 4) {
    if (row % 4 + column % 4 == 3) sign = -sign;
  }
  return sign;
}

struct Weight {
  RotatedCodes packing = RotatedCodes::bytes;
  std::uint64_t rows = 3;
  std::uint64_t columns = 0;
  std::uint64_t rotation = 4;
  std::uint64_t group = 16;
  bool relative_is_f32 = false;
  bool has_codebook = false;
  std::vector<std::byte> codes{};  ///< empty: random
};

/// Returns bytes whose rotation has the largest sum at a column: -128 where the matrix has -1
/// there.
std::vector<std::byte> largest_sums(std::uint64_t rotation, std::uint64_t column, bool negated) {
  std::vector<std::byte> codes;
  for (std::uint64_t j = 0; j < rotation; ++j) {
    const bool is_negative = (sign_of(column, j, rotation) < 0) != negated;
    codes.push_back(static_cast<std::byte>(is_negative ? 0x80 : 0x7F));
  }
  return codes;
}

unsigned code_at(const std::vector<std::byte>& bytes, std::uint64_t begin, std::uint64_t column) {
  const auto pair = std::to_integer<unsigned>(bytes[begin + column / 2]);
  return column % 2 == 0 ? pair & 15U : pair >> 4;
}

void check(const Weight& weight) {
  CAPTURE(static_cast<int>(weight.packing));
  CAPTURE(weight.columns);
  CAPTURE(weight.rotation);
  RotatedRows from;
  from.packing = weight.packing;
  from.columns = weight.columns;
  from.rotation = weight.rotation;
  from.group = weight.group;
  const std::vector<std::byte> codes =
      weight.codes.empty() ? random_bytes(weight.rows * from.row_bytes(), weight.columns)
                           : weight.codes;
  const std::uint64_t groups = weight.columns / weight.group;
  std::vector<float> relative;
  std::vector<std::byte> stored;
  for (std::uint64_t i = 0; i < weight.rows * groups; ++i) {
    // 2^(e - 7), exactly a number of both types
    const auto exponent = static_cast<int>(i % 5 + 5);
    relative.push_back(std::ldexp(1.0F, exponent - 7));
    if (weight.relative_is_f32) {
      const auto bytes = std::bit_cast<std::array<std::byte, 4>>(relative.back());
      stored.insert(stored.end(), bytes.begin(), bytes.end());
    } else {
      stored.push_back(static_cast<std::byte>(exponent << 3));
    }
  }
  std::vector<float> codebook;
  for (int i = 0; i < 16; ++i) codebook.push_back(static_cast<float>(i * i) - 90.25F);
  const std::vector<float> scales{0.25F, -3.0F, 1.5F};

  const auto integer_at = [&](std::uint64_t row, std::uint64_t column) -> int {
    const std::uint64_t begin = row * from.row_bytes();
    if (weight.packing == RotatedCodes::bytes) {
      return static_cast<std::int8_t>(std::to_integer<unsigned>(codes[begin + column]));
    }
    unsigned code = code_at(codes, begin, column);
    if (weight.packing == RotatedCodes::nibbles) return static_cast<int>(code ^ 8U) - 8;
    int middle = 8;
    if (weight.packing == RotatedCodes::six) {
      middle = 32;
      const auto upper = std::to_integer<unsigned>(codes[begin + weight.columns / 2 + column / 4]);
      code |= (upper >> (column % 4 * 2) & 3U) << 4;
    }
    const float value =
        weight.has_codebook ? codebook[code] : static_cast<float>(static_cast<int>(code) - middle);
    const float scaled = value * relative[row * groups + column / weight.group];
    return static_cast<int>(std::fmin(std::fmax(std::nearbyint(scaled), -127.0F), 127.0F));
  };
  std::vector<std::byte> expected;
  for (std::uint64_t row = 0; row < weight.rows; ++row) {
    for (std::uint64_t k = 0; k < weight.columns; ++k) {
      const std::uint64_t first = k / weight.rotation * weight.rotation;
      int sum = 0;
      for (std::uint64_t j = 0; j < weight.rotation; ++j) {
        sum += sign_of(k - first, j, weight.rotation) * integer_at(row, first + j);
      }
      const float value =
          static_cast<float>(sum) * scales[row] / std::sqrt(static_cast<float>(weight.rotation));
      const auto bytes = std::bit_cast<std::array<std::byte, 4>>(value);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
  }
  const Skewed own(codes, 1);
  const Skewed own_relative(stored, 1);
  from.codes = own.data();
  from.relative = own_relative.data();
  from.relative_is_f32 = weight.relative_is_f32;
  from.codebook = weight.has_codebook ? codebook.data() : nullptr;
  from.scales = scales.data();
  for (const weights::Kernels* kernels : weights::usable_kernels()) {
    CAPTURE(std::string(kernels->name));
    for (const Output output : kOutputs) {
      const Skewed to(weight.rows * weight.columns * weights::size_of(output), 1);
      weights::dequantize_rotated(from, weight.rows, output, to.data(), {}, *kernels);
      CHECK(count_differences(to.span(), rounded_all(expected, output), output) == 0);
    }
  }
}

}  // namespace

TEST_CASE("rotated integers: every packing and size") {
  for (const std::uint64_t rotation : {4U, 16U, 64U, 256U, 1024U}) {
    for (const std::uint64_t columns : {1024U, 3072U}) {
      check({RotatedCodes::bytes, 3, columns, rotation});
      check({RotatedCodes::nibbles, 3, columns, rotation});
      check({RotatedCodes::four, 3, columns, rotation});
      check({RotatedCodes::six, 2, columns, rotation, 32});
    }
  }
  check({RotatedCodes::bytes, 1, 4, 4});
  check({RotatedCodes::bytes, 3, 12, 4});
  check({RotatedCodes::six, 3, 36, 4, 12});
  check({RotatedCodes::four, 3, 240, 16, 5});
  check({RotatedCodes::four, 3, 2304, 256, 96, true, true});
  check({RotatedCodes::four, 3, 2304, 256, 96, false, true});
  check({RotatedCodes::six, 3, 2304, 256, 48, true});
}

TEST_CASE("rotated integers: sums of any size are exact") {
  for (const std::uint64_t rotation : {4U, 16U, 64U, 256U, 1024U}) {
    for (const bool negated : {false, true}) {
      for (std::uint64_t column = 0; column < rotation; column += rotation / 4 + 1) {
        check({.rows = 1,
               .columns = rotation,
               .rotation = rotation,
               .codes = largest_sums(rotation, column, negated)});
      }
    }
    check({.rows = 1,
           .columns = rotation,
           .rotation = rotation,
           .codes = std::vector<std::byte>(rotation, std::byte{0x80})});
  }
}

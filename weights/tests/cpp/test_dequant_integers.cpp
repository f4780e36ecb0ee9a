// Compares integers with scales and zero points with a plain formula.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "dequant/integers.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::IntegerMatrices;
using weights::Packing;
using weights::ScaleType;
using weights::ZeroPoints;

/// Reads `width` bits from a bit on, one at a time.
int bits_at(std::span<const std::byte> bytes, std::uint64_t bit, int width) {
  int value = 0;
  for (int i = 0; i < width; ++i, ++bit) {
    value |= (std::to_integer<int>(bytes[bit / 8]) >> (bit % 8) & 1) << i;
  }
  return value;
}

std::uint32_t word_at(std::span<const std::byte> bytes, std::uint64_t index) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    word |= std::to_integer<std::uint32_t>(bytes[index * 4 + i]) << (8 * i);
  }
  return word;
}

/// A stack of matrices with random contents.
struct Example {
  Packing packing;
  int bits;
  ScaleType scale_type;
  ZeroPoints zero_type;
  std::uint64_t matrices;
  std::uint64_t rows;
  std::uint64_t columns;
  std::uint64_t group;
  std::uint64_t rows_per_scale = 1;
  bool reordered = false;

  [[nodiscard]] std::uint64_t groups() const { return (columns + group - 1) / group; }
  [[nodiscard]] std::uint64_t scale_rows() const {
    return (rows + rows_per_scale - 1) / rows_per_scale;
  }
  [[nodiscard]] std::uint64_t row_words() const {
    const auto width = static_cast<std::uint64_t>(bits);
    if (packing == Packing::dense) return (columns * width + 31) / 32;
    return (columns + 32 / width - 1) / (32 / width);
  }
};

/// Scales in the files' types, whose values are exact in each of them.
struct Scales {
  std::vector<float> values;
  std::vector<std::byte> stored;
};

Scales make_scales(ScaleType type, std::size_t count, std::uint64_t seed) {
  Scales scales;
  const auto random = random_bytes(count, seed);
  for (const std::byte byte : random) {
    const float value =
        std::ldexp(static_cast<float>(128 + (std::to_integer<int>(byte) >> 1)), -16);
    scales.values.push_back(value);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    std::uint32_t stored = bits;
    if (type == ScaleType::bf16) stored = bits >> 16;
    if (type == ScaleType::f16) stored = rounded(value, Output::f16);
    for (unsigned k = 0; k < (type == ScaleType::f32 ? 4U : 2U); ++k) {
      scales.stored.push_back(static_cast<std::byte>(stored >> (8 * k) & 0xFF));
    }
  }
  return scales;
}

void check(const Example& example) {
  CAPTURE(static_cast<int>(example.packing));
  CAPTURE(example.bits);
  CAPTURE(static_cast<int>(example.zero_type));
  CAPTURE(example.columns);
  CAPTURE(example.group);
  IntegerMatrices from;
  from.packing = example.packing;
  from.bits = example.bits;
  from.matrix_rows = example.rows;
  from.columns = example.columns;
  from.rows_per_scale = example.rows_per_scale;
  from.groups = example.groups();
  from.group = example.group;
  from.scale_type = example.scale_type;
  from.zero_type = example.zero_type;

  const std::uint64_t rows = example.matrices * example.rows;
  const bool is_signed = example.packing == Packing::bytes;
  const std::uint64_t row_bytes = is_signed ? example.columns : example.row_words() * 4;
  CHECK(from.row_bytes() == row_bytes);
  const auto codes = random_bytes(rows * row_bytes, 1);
  const std::uint64_t lines = example.matrices * example.scale_rows();
  const Scales scales = make_scales(example.scale_type, lines * from.groups, 2);
  const bool is_dense = example.packing != Packing::words;
  const std::uint64_t in_word = 32 / static_cast<unsigned>(example.bits);
  const std::uint64_t zero_rows =
      is_dense ? (example.scale_rows() * static_cast<unsigned>(example.bits) + 31) / 32
               : (example.scale_rows() + in_word - 1) / in_word;
  const std::size_t zero_size = example.zero_type == ZeroPoints::i8 ? 1 : 4;
  const bool packed_zeros = example.zero_type == ZeroPoints::packed;
  auto zeros = random_bytes(
      (packed_zeros ? example.matrices * zero_rows : lines) * from.groups * zero_size, 3);
  if (example.zero_type == ZeroPoints::i32) {  // small numbers
    for (std::size_t i = 0; i < zeros.size(); i += 4) {
      const std::byte sign =
          (zeros[i] & std::byte{0x80}) != std::byte{0} ? std::byte{0xFF} : std::byte{0};
      zeros[i + 1] = zeros[i + 2] = zeros[i + 3] = sign;
    }
  }
  std::vector<std::uint32_t> group_of_column(example.columns);
  for (std::uint64_t k = 0; k < example.columns; ++k) {
    // 7 is prime to the numbers of columns.
    const std::uint64_t place = example.reordered ? k * 7 % example.columns : k;
    group_of_column[k] = static_cast<std::uint32_t>(place / example.group);
  }
  if (example.reordered) from.group_of_column = group_of_column.data();

  const int half = is_signed ? 0 : 1 << (example.bits - 1);
  const auto code = [&](std::uint64_t row, std::uint64_t k) -> int {
    const auto of_row = tail(codes, row * row_bytes);
    if (is_signed) return static_cast<std::int8_t>(of_row[k]);
    const auto width = static_cast<std::uint64_t>(example.bits);
    if (example.packing == Packing::dense) return bits_at(of_row, k * width, example.bits) - half;
    return bits_at(of_row, k / in_word * 32 + k % in_word * width, example.bits) - half;
  };
  const auto zero = [&](std::uint64_t row, std::uint64_t group) -> int {
    const std::uint64_t matrix = row / example.rows;
    const std::uint64_t line = row % example.rows / example.rows_per_scale;
    const std::uint64_t place = (matrix * example.scale_rows() + line) * from.groups + group;
    if (example.zero_type == ZeroPoints::none) return 0;
    if (example.zero_type == ZeroPoints::i8) return static_cast<std::int8_t>(zeros[place]);
    if (example.zero_type == ZeroPoints::i32)
      return static_cast<std::int32_t>(word_at(zeros, place));
    std::vector<std::byte> column;  // the stream of this group
    for (std::uint64_t w = 0; w < zero_rows; ++w) {
      const std::size_t word = ((matrix * zero_rows + w) * from.groups + group) * 4;
      column.insert(column.end(), zeros.begin() + static_cast<std::ptrdiff_t>(word),
                    zeros.begin() + static_cast<std::ptrdiff_t>(word) + 4);
    }
    const std::uint64_t width = static_cast<unsigned>(example.bits);
    const std::uint64_t bit =
        is_dense ? line * width : line / in_word * 32 + line % in_word * width;
    return bits_at(column, bit, example.bits) - half;
  };

  std::vector<std::byte> expected;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t k = 0; k < example.columns; ++k) {
      const std::uint64_t line =
          row / example.rows * example.scale_rows() + row % example.rows / example.rows_per_scale;
      const std::uint64_t group = group_of_column[k];
      const float value = static_cast<float>(code(row, k) - zero(row, group)) *
                          scales.values[line * from.groups + group];
      const auto bytes = std::bit_cast<std::array<std::byte, 4>>(value);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
  }

  for (const std::uint64_t first : {std::uint64_t{0}, rows / 3}) {
    // Only the rows' own codes, at the end of the memory.
    const Skewed own(tail(codes, first * row_bytes), 1);
    const Skewed own_scales(scales.stored, 1);
    const Skewed own_zeros(zeros, 1);
    from.codes = {own.data(), first * row_bytes};
    from.codes_end = own.data() + own.span().size();
    from.scales = {own_scales.data(), 0};
    from.zeros = {own_zeros.data(), 0};
    check_outputs(tail(expected, first * example.columns * 4), first == 0 ? 0 : 1,
                  [&](Output output, std::byte* to, const Kernels& kernels) {
                    weights::dequantize_integers(from, first, rows - first, output, to, {},
                                                 kernels);
                  });
  }
}

}  // namespace

TEST_CASE("integers: every width, type of scales and kind of zero points") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const ScaleType type : {ScaleType::f16, ScaleType::bf16, ScaleType::f32}) {
      for (const ZeroPoints zeros : {ZeroPoints::none, ZeroPoints::packed, ZeroPoints::i8}) {
        check({Packing::dense, bits, type, zeros, 1, 9, 160, 32});
      }
    }
    check({Packing::dense, bits, ScaleType::f16, ZeroPoints::packed, 3, 37, 96, 96});
    check({Packing::words, bits, ScaleType::f16, ZeroPoints::packed, 2, 37, 100, 25});
  }
}

TEST_CASE("integers: groups and rows of any length") {
  for (const int bits : {3, 4, 7, 8}) {
    for (const std::uint64_t columns : {1U, 31U, 33U, 100U, 2047U, 2048U, 2051U, 4100U}) {
      for (const std::uint64_t group : {1U, 24U, 32U, 96U, 128U, 3000U, 5000U}) {
        check({Packing::dense, bits, ScaleType::f16, ZeroPoints::packed, 2, 3, columns, group});
      }
    }
  }
}

TEST_CASE("integers: a group for each column") {
  for (const int bits : {4, 8}) {
    check({Packing::dense, bits, ScaleType::f16, ZeroPoints::packed, 1, 5, 4096, 128, 1, true});
    check({Packing::dense, bits, ScaleType::bf16, ZeroPoints::none, 2, 3, 96, 32, 1, true});
  }
}

TEST_CASE("integers: signed bytes with scales for blocks, rows, and all") {
  for (const ZeroPoints zeros : {ZeroPoints::none, ZeroPoints::i8, ZeroPoints::i32}) {
    for (const std::uint64_t rows_per_scale : {1U, 4U, 11U}) {
      for (const std::uint64_t group : {1U, 32U, 128U, 2500U}) {
        check({Packing::bytes, 8, ScaleType::f32, zeros, 2, 11, 2500, group, rows_per_scale});
      }
    }
  }
}

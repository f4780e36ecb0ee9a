// Weights of AWQ and GPTQ: every build of the kernels gives the value of the formula, for any rows,
// group size and address. Buffers have their exact size, so that ASan detects a read past the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "dequant/columns.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::ColumnCodes;
using weights::ColumnLayout;
using weights::ScaleType;

constexpr unsigned kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};

unsigned stored_bits(const std::byte* from, std::size_t place, unsigned bits) {
  unsigned value = 0;
  for (unsigned i = 0; i < bits; ++i, ++place) {
    value |= (std::to_integer<unsigned>(from[place / 8]) >> (place % 8) & 1U) << i;
  }
  return value;
}

struct Case {
  ColumnLayout layout;
  unsigned bits;
  std::size_t rows;     // N
  std::size_t columns;  // K
  std::size_t group_size;
  bool shuffled = false;
  bool zeros = true;
};

/// A weight of random codes, and small scales.
class Weight {
 public:
  Weight(const Case& shape, std::size_t skew)
      : shape_(shape),
        groups_((shape.columns + shape.group_size - 1) / shape.group_size),
        words_(random_bytes(is_awq() ? shape.columns * shape.rows / 2
                                     : shape.columns * shape.bits / 32 * shape.rows * 4,
                            1),
               skew),
        zeros_(random_bytes(groups_ * shape.rows * shape.bits / 8, 2), skew),
        scales_(groups_ * shape.rows * sizeof(float), skew) {
    for (std::size_t i = 0; i < groups_ * shape.rows; ++i) {
      scale_values_.push_back(0.37F + 0.001F * static_cast<float>(i * 7919 % 1000));
      auto bits = std::bit_cast<std::uint32_t>(scale_values_.back());
      for (std::size_t k = 0; k < 4; ++k, bits >>= 8) {
        scales_.span()[4 * i + k] = static_cast<std::byte>(bits & 0xFF);
      }
    }
    if (!shape.shuffled) return;
    for (std::size_t k = 0; k < shape.columns; ++k) {
      group_of_.push_back(static_cast<std::uint32_t>(k * 31 % groups_));
    }
  }

  /// Returns the rows from `first` on.
  [[nodiscard]] ColumnCodes from(std::size_t first) const {
    ColumnCodes codes;
    codes.layout = shape_.layout;
    codes.bits = static_cast<int>(shape_.bits);
    codes.columns = shape_.columns;
    codes.groups = groups_;
    codes.group_size = shape_.group_size;
    codes.group_of = group_of_;
    codes.words = is_awq() ? weights::StoredRows{words_.data() + first / 8 * 4, shape_.rows / 2}
                           : weights::StoredRows{words_.data() + first * 4, shape_.rows * 4};
    if (shape_.zeros) {
      codes.zeros = {zeros_.data() + first / 32 * 32 * shape_.bits / 8,
                     shape_.rows * shape_.bits / 8};
    }
    codes.scales = {scales_.data() + first * 4, shape_.rows * 4};
    codes.first_row = first;
    codes.added_to_zeros = shape_.layout == ColumnLayout::gptq ? 1 : 0;
    codes.scale_type = ScaleType::f32;
    return codes;
  }

  /// Returns a value by the formula.
  [[nodiscard]] float value(std::size_t n, std::size_t k) const {
    const std::size_t g = shape_.shuffled ? group_of_[k] : k / shape_.group_size;
    const std::size_t N = shape_.rows;
    unsigned code = 0;
    unsigned zero = 1U << (shape_.bits - 1);
    if (is_awq()) {
      code = stored_bits(words_.data() + k * N / 2 + n / 8 * 4, kOrder[n % 8] * 4, 4);
      if (shape_.zeros) {
        zero = stored_bits(zeros_.data() + g * N / 2 + n / 8 * 4, kOrder[n % 8] * 4, 4);
      }
    } else {
      for (unsigned i = 0; i < shape_.bits; ++i) {
        const std::size_t place = k * shape_.bits + i;
        code |= stored_bits(words_.data() + (place / 32 * N + n) * 4, place % 32, 1) << i;
      }
      if (shape_.zeros) {
        zero = stored_bits(zeros_.data() + g * (N * shape_.bits / 8), n * shape_.bits, shape_.bits);
        zero = (zero + 1) % (1U << shape_.bits);
      }
    }
    return (static_cast<float>(code) - static_cast<float>(zero)) * scale_values_[g * N + n];
  }

 private:
  [[nodiscard]] bool is_awq() const { return shape_.layout == ColumnLayout::awq; }

  Case shape_;
  std::size_t groups_;
  Skewed words_;
  Skewed zeros_;
  Skewed scales_;  // little-endian
  std::vector<float> scale_values_;
  std::vector<std::uint32_t> group_of_;
};

std::vector<std::byte> expected(const Weight& weight, const Case& shape, std::size_t first,
                                std::size_t count) {
  std::vector<float> values;
  for (std::size_t n = first; n < first + count; ++n) {
    for (std::size_t k = 0; k < shape.columns; ++k) values.push_back(weight.value(n, k));
  }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<Case> all_cases() {
  std::vector<Case> all = {
      {ColumnLayout::awq, 4, 8, 32, 32},
      {ColumnLayout::awq, 4, 96, 1056, 32},
      {ColumnLayout::awq, 4, 136, 100, 100},
      {ColumnLayout::awq, 4, 72, 130, 48},
      {ColumnLayout::awq, 4, 64, 640, 64, false, false},
  };
  for (const unsigned bits : {2U, 3U, 4U, 8U}) {
    all.push_back({ColumnLayout::gptq, bits, 32, 32, 32});
    all.push_back({ColumnLayout::gptq, bits, 96, 1056, 128});
    all.push_back({ColumnLayout::gptq, bits, 64, 608, 608});
    all.push_back({ColumnLayout::gptq, bits, 96, 576, 16});
    all.push_back({ColumnLayout::gptq, bits, 32, 640, 48});
    all.push_back({ColumnLayout::gptq, bits, 64, 544, 32, true});
    all.push_back({ColumnLayout::gptq, bits, 64, 544, 32, false, false});
  }
  // Columns that are not whole steps of 32 codes.
  all.push_back({ColumnLayout::gptq, 4, 64, 104, 64});
  all.push_back({ColumnLayout::gptq, 8, 64, 100, 32});
  all.push_back({ColumnLayout::gptq, 2, 64, 80, 32, true});
  return all;
}

}  // namespace

TEST_CASE("dequantising columns: any rows, by all builds") {
  for (const Case& shape : all_cases()) {
    CAPTURE(static_cast<int>(shape.layout));
    CAPTURE(shape.bits);
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    CAPTURE(shape.group_size);
    for (const std::size_t skew : {0U, 1U}) {
      const Weight weight(shape, skew);
      for (const std::size_t first :
           {std::size_t{0}, std::size_t{1}, std::size_t{7}, shape.rows / 2 + 3, shape.rows - 1}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{6}, shape.rows - first}) {
          if (count > shape.rows - first) continue;
          const auto floats = expected(weight, shape, first, count);
          check_outputs(floats, skew, [&](Output output, std::byte* to, const Kernels& kernels) {
            weights::dequantize_columns(weight.from(first), count, output, to, {}, kernels);
          });
        }
      }
    }
  }
}

TEST_CASE("dequantising columns: the examples of the formats") {
  ColumnCodes codes;
  codes.columns = 1;
  codes.groups = 1;
  codes.group_size = 1;
  std::vector<float> values(8);
  const auto to = std::as_writable_bytes(std::span(values)).data();
  const std::byte word[] = {std::byte{0x10}, std::byte{0x32}, std::byte{0x54}, std::byte{0x76}};
  const std::byte zeros[4] = {};
  const std::vector<std::byte> ones = [] {
    std::vector<std::byte> halves;
    for (int i = 0; i < 8; ++i) {
      halves.push_back(std::byte{0});
      halves.push_back(std::byte{0x3C});
    }
    return halves;
  }();
  codes.words = {word, 4};
  codes.zeros = {zeros, 4};
  codes.scales = {ones.data(), ones.size()};
  weights::dequantize_columns(codes, 8, Output::f32, to);
  CHECK(values == std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7});

  codes.layout = ColumnLayout::gptq;
  codes.columns = 8;
  codes.group_size = 8;
  codes.added_to_zeros = 1;
  weights::dequantize_columns(codes, 1, Output::f32, to);
  CHECK(values == std::vector<float>{-1, 0, 1, 2, 3, 4, 5, 6});

  // A stored zero of all ones is 0.
  const std::byte all_ones[4] = {std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF},
                                 std::byte{0xFF}};
  codes.zeros = {all_ones, 4};
  weights::dequantize_columns(codes, 1, Output::f32, to);
  CHECK(values == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("dequantising columns: several threads give the same values as one") {
  const Case shape{ColumnLayout::gptq, 4, 1056, 4096, 128};
  const Weight weight(shape, 0);
  std::vector<std::byte> whole(shape.rows * shape.columns * sizeof(float));
  weights::dequantize_columns(weight.from(0), shape.rows, Output::f32, whole.data());
  std::vector<std::byte> parts(whole.size());
  for (std::size_t n = 0; n < shape.rows; n += 11) {
    weights::dequantize_columns(weight.from(n), 11, Output::f32,
                                parts.data() + n * shape.columns * sizeof(float));
  }
  CHECK(count_differences(whole, parts, Output::f32) == 0);
}

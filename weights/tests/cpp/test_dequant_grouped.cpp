// Compares codes of four and six bits in groups with a plain formula.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "dequant/grouped.hpp"
#include "dequant_support.hpp"

namespace {

using namespace test;
using weights::GroupedPacking;
using weights::GroupedRows;
using weights::ScaleType;

/// Returns the value of a code without its scale.
float value_at(GroupedPacking packing, const std::vector<std::byte>& codes, std::uint64_t columns,
               std::uint64_t row, std::uint64_t column) {
  const auto byte = [&](std::uint64_t i) { return std::to_integer<unsigned>(codes[i]); };
  switch (packing) {
    case GroupedPacking::row_pairs: {
      const unsigned pair = byte(row / 2 * columns + column);
      const unsigned code = row % 2 == 0 ? pair & 15U : pair >> 4;
      return static_cast<float>(static_cast<int>(code ^ 8U) - 8);
    }
    case GroupedPacking::nibbles: {
      const unsigned pair = byte((row * columns + column) / 2);
      return static_cast<float>(column % 2 == 0 ? pair & 15U : pair >> 4) - 8;
    }
    case GroupedPacking::e2m3:
      break;
  }
  const std::uint64_t begin = (row * columns + column) / 4 * 3;
  const unsigned word = byte(begin) | byte(begin + 1) << 8 | byte(begin + 2) << 16;
  const unsigned code = word >> (column % 4 * 6) & 63U;
  const auto fraction = static_cast<float>(code & 7U) / 8;
  const auto exponent = static_cast<int>(code >> 3 & 3U);
  const float size = exponent == 0 ? fraction : std::ldexp(1 + fraction, exponent - 1);
  return code >= 32 ? -size : size;
}

void check(GroupedPacking packing, std::uint64_t columns, std::uint64_t group, bool transposed,
           bool has_factors) {
  CAPTURE(static_cast<int>(packing));
  CAPTURE(columns);
  constexpr std::uint64_t kRows = 6;
  const std::uint64_t groups = columns / group;
  const std::uint64_t bits = packing == GroupedPacking::e2m3 ? 6 : 4;
  const std::vector<std::byte> codes = random_bytes(kRows * columns * bits / 8, columns);
  const bool is_exponent = packing == GroupedPacking::e2m3;
  const bool has_offsets = packing == GroupedPacking::nibbles;
  // Powers of two: F32, or exponents with the bias 127.
  const auto exponent = [&](std::uint64_t row, std::uint64_t g) {
    return static_cast<int>((row * 3 + g) % 7) - 3;
  };
  std::vector<std::byte> scales;
  std::vector<float> factors;
  for (std::uint64_t k = 0; k < columns; ++k) factors.push_back(static_cast<float>(k % 5) - 1.5F);
  for (std::uint64_t i = 0; i < kRows * groups; ++i) {
    const std::uint64_t row = transposed ? i % kRows : i / groups;
    const std::uint64_t g = transposed ? i / kRows : i % groups;
    if (is_exponent) {
      scales.push_back(static_cast<std::byte>(exponent(row, g) + 127));
      continue;
    }
    const auto bytes = std::bit_cast<std::array<std::byte, 4>>(std::ldexp(1.0F, exponent(row, g)));
    scales.insert(scales.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> expected;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    for (std::uint64_t k = 0; k < columns; ++k) {
      const float scale = std::ldexp(1.0F, exponent(row, k / group));
      float value = value_at(packing, codes, columns, row, k) * scale;
      if (has_offsets) value += scale;
      if (has_factors) value *= factors[k];
      const auto bytes = std::bit_cast<std::array<std::byte, 4>>(value);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
  }
  for (const std::uint64_t first : {0U, 1U, 3U}) {
    const std::uint64_t stored = packing == GroupedPacking::row_pairs ? first / 2 : first;
    const std::uint64_t row_bytes =
        packing == GroupedPacking::row_pairs ? columns : columns * bits / 8;
    const std::uint64_t size = is_exponent ? 1 : 4;
    const Skewed own(tail(codes, stored * row_bytes), 1);
    const Skewed own_scales(scales, 1);
    GroupedRows from;
    from.packing = packing;
    from.codes = own.data();
    from.columns = columns;
    from.first_row = first;
    from.group = group;
    from.scale_type = is_exponent ? ScaleType::u8 : ScaleType::f32;
    from.row_step = transposed ? size : groups * size;
    from.group_step = transposed ? kRows * size : size;
    from.scales = own_scales.data() + first * from.row_step;
    from.offsets = has_offsets ? from.scales : nullptr;
    from.column_scales = has_factors ? factors.data() : nullptr;
    for (const weights::Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      for (const Output output : kOutputs) {
        const Skewed to((kRows - first) * columns * weights::size_of(output), 1);
        weights::dequantize_grouped(from, kRows - first, output, to.data(), {}, *kernels);
        CHECK(count_differences(to.span(), rounded_all(tail(expected, first * columns * 4), output),
                                output) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("codes in groups: every packing, rows of any length") {
  for (const bool has_factors : {false, true}) {
    check(GroupedPacking::row_pairs, 128, 128, false, has_factors);
    check(GroupedPacking::row_pairs, 4224, 33, false, has_factors);
    check(GroupedPacking::nibbles, 128, 64, true, has_factors);
    check(GroupedPacking::nibbles, 2304, 96, true, has_factors);
    check(GroupedPacking::nibbles, 2310, 5, true, has_factors);
    check(GroupedPacking::e2m3, 32, 32, false, has_factors);
    check(GroupedPacking::e2m3, 2080, 32, false, has_factors);
  }
}

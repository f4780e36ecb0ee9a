// Compares the decoding of rows with scales with independent formulas.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "dequant/fp4.hpp"
#include "dequant/scaled.hpp"
#include "dequant_support.hpp"
#include "safetensors/to_float.hpp"

namespace {

using namespace test;
using safetensors::Dtype;

float value_of(Dtype type, std::byte code) {
  const auto bits = std::to_integer<std::uint8_t>(code);
  switch (type) {
    case Dtype::kF8E5M2:
      return safetensors::f8_e5m2_to_float(bits);
    case Dtype::kF8E4M3FNUZ:
      return safetensors::f8_e4m3fnuz_to_float(bits);
    case Dtype::kF8E5M2FNUZ:
      return safetensors::f8_e5m2fnuz_to_float(bits);
    default:
      return safetensors::f8_e4m3_to_float(bits);
  }
}

bool same_value(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

struct Case {
  std::uint64_t matrices, rows, columns, block_rows, block_columns;
};
// Ragged blocks, pieces of several scratch buffers, and blocks that divide neither.
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1},     {1, 5, 129, 128, 128}, {3, 7, 100, 4, 32},    {2, 3, 4500, 2, 128},
    {1, 4, 5000, 3, 33}, {1, 2, 2049, 1, 2049}, {2, 2, 4097, 2, 3000}, {1, 3, 2048, 1, 1},
};

}  // namespace

TEST_CASE("dequantising scaled rows: all types, blocks and builds, at any address") {
  for (const Kernels* kernels : weights::usable_kernels()) {
    for (const Dtype type :
         {Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF8E4M3FNUZ, Dtype::kF8E5M2FNUZ}) {
      for (const Case& c : kCases) {
        const std::uint64_t scale_rows = (c.rows - 1) / c.block_rows + 1;
        const std::uint64_t scale_columns = (c.columns - 1) / c.block_columns + 1;
        const std::uint64_t rows = c.matrices * c.rows;
        CAPTURE(kernels->name);
        CAPTURE(c.columns);
        const Skewed codes(random_bytes(rows * c.columns, 1), 1);
        // Powers of two, as U8.
        Skewed scales(random_bytes(c.matrices * scale_rows * scale_columns, 2), 1);
        for (std::byte& scale : scales.span()) scale = (scale & std::byte{31}) | std::byte{112};
        const std::uint64_t first = rows / 3;
        weights::ScaledRows from;
        from.type = type;
        from.scale_type = Dtype::kU8;
        from.codes = codes.data() + first * c.columns;
        from.scales = scales.data();
        from.columns = c.columns;
        from.first_row = first;
        from.matrix_rows = c.rows;
        from.block_rows = c.block_rows;
        from.block_columns = c.block_columns;
        std::vector<float> values((rows - first) * c.columns);
        weights::dequantize_scaled(from, rows - first, Output::f32,
                                   reinterpret_cast<std::byte*>(values.data()), {}, *kernels);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::uint64_t row = first + i / c.columns;
          const std::uint64_t column = i % c.columns;
          const std::uint64_t scale =
              (row / c.rows * scale_rows + row % c.rows / c.block_rows) * scale_columns +
              column / c.block_columns;
          const float wanted = value_of(type, codes.data()[row * c.columns + column]) *
                               std::ldexp(1.0F, std::to_integer<int>(scales.data()[scale]) - 127);
          wrong += same_value(values[i], wanted) ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("dequantising MXFP4: every second row, in all builds") {
  constexpr std::uint64_t kRows = 6;
  constexpr std::uint64_t kColumns = 2080;  // more than a scratch buffer
  constexpr float kValues[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const Skewed codes(random_bytes(kRows * kColumns / 2, 3), 1);
  Skewed scales(random_bytes(kRows * kColumns / 32, 4), 1);
  for (std::byte& scale : scales.span()) scale = (scale & std::byte{31}) | std::byte{112};
  for (const Kernels* kernels : weights::usable_kernels()) {
    for (const std::uint64_t first : {0U, 1U}) {
      CAPTURE(kernels->name);
      weights::Fp4Matrices from;
      from.columns = kColumns;
      from.codes = {codes.data(), 0};
      from.scales = {scales.data(), 0};
      from.stride = 2;
      from.offset = first;
      std::vector<float> values(kRows / 2 * kColumns);
      weights::dequantize_fp4(from, 0, kRows / 2, Output::f32,
                              reinterpret_cast<std::byte*>(values.data()), {}, *kernels);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t place = (i / kColumns * 2 + first) * kColumns + i % kColumns;
        const int byte = std::to_integer<int>(codes.data()[place / 2]);
        const int code = place % 2 == 0 ? byte & 15 : byte >> 4;
        const float magnitude =
            std::ldexp(kValues[code & 7], std::to_integer<int>(scales.data()[place / 32]) - 127);
        wrong += values[i] == ((code & 8) != 0 ? -magnitude : magnitude) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

// Decodes integers of 1 to 8 bits with scales and zero points: a function of memory, without files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/divide_up.hpp"
#include "dequant/dequant.hpp"
#include "dequant/part_bytes.hpp"

namespace safetensors::weights {

/// How a row of codes is stored.
enum class Packing : std::uint8_t {
  dense,  ///< one stream of bits, the lowest first, padded to a whole 32-bit word
  words,  ///< 32 / bits codes in each 32-bit word, the first in its lowest bits; other bits are
          ///< idle
  bytes,  ///< signed bytes
};

/// Returns the 32-bit words of a row of `count` codes, not of Packing::bytes.
[[nodiscard]] constexpr std::uint64_t words_of(Packing packing, int bits,
                                               std::uint64_t count) noexcept {
  const auto width = static_cast<std::uint64_t>(bits);
  return packing == Packing::dense ? divide_up(count * width, 32) : divide_up(count, 32 / width);
}

/// How zero points are stored.
enum class ZeroPoints : std::uint8_t {
  none,    ///< 0 for signed bytes, else half of the range of codes
  packed,  ///< as codes, in the same packing but down the rows of a matrix; relative to 0
  i8,      ///< of the scales' shape, relative to what `none` means
  i32,     ///< likewise
};

/// Returns how zero points of this type are stored that are not packed; `none` if there are no
/// such.
[[nodiscard]] constexpr ZeroPoints zero_type_of(Dtype dtype) noexcept {
  if (dtype == Dtype::kI8) return ZeroPoints::i8;
  return dtype == Dtype::kI32 ? ZeroPoints::i32 : ZeroPoints::none;
}

/// A stack of matrices of integers. With e the matrix of a row, i the row in it, and k the column:
///
///     value[e, i, k] = (code[e, i, k] - zero[e, i / rows_per_scale, g]) * scale[the same place]
///     g = k / group, or group_of_column[k]
struct IntegerMatrices {
  Packing packing = Packing::dense;
  int bits = 4;
  std::uint64_t matrix_rows = 1;
  std::uint64_t columns = 0;
  std::uint64_t rows_per_scale = 1;
  std::uint64_t groups = 1;  ///< scales of a row
  std::uint64_t group = 1;   ///< columns that share a scale; groups * group >= columns
  const std::uint32_t* group_of_column = nullptr;  ///< or nullptr; less than `groups` each
  ScaleType scale_type = ScaleType::f16;           ///< not u8
  ZeroPoints zero_type = ZeroPoints::none;
  PartBytes codes;
  PartBytes scales;
  PartBytes zeros;
  const std::byte* codes_end = nullptr;  ///< the end of the codes that can be read
  const float* column_scales = nullptr;  ///< see ColumnScales

  /// Returns the bytes of a row of codes.
  [[nodiscard]] std::uint64_t row_bytes() const noexcept;
  /// Returns the rows of scales of one matrix.
  [[nodiscard]] std::uint64_t scale_rows() const noexcept {
    return divide_up(matrix_rows, rows_per_scale);
  }
  /// Returns the rows of words of packed zero points of one matrix.
  [[nodiscard]] std::uint64_t zero_rows() const noexcept {
    return words_of(packing, bits, scale_rows());
  }
  /// Returns the first bit of the packed zero point of a row of the stack, in the column of words
  /// of its group. The zero point lies in one word, or in two words below each other.
  [[nodiscard]] std::uint64_t zero_bit(std::uint64_t row) const noexcept {
    const std::uint64_t line = row % matrix_rows / rows_per_scale;
    const auto width = static_cast<std::uint64_t>(bits);
    const std::uint64_t in_word = 32 / width;
    return row / matrix_rows * zero_rows() * 32 +
           (packing == Packing::dense ? line * width
                                      : line / in_word * 32 + line % in_word * width);
  }
};

/// Decodes `rows` rows from row `first` of the stack on, in F32 and in the order of the formula;
/// the difference is exact.
///
/// Requires: the parts have the bytes that the rows need.
void dequantize_integers(const IntegerMatrices& from, std::uint64_t first, std::uint64_t rows,
                         Output output, std::byte* to, const Interrupt& interrupt = {},
                         const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

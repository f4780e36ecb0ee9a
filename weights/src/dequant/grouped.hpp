// Decodes codes of four and six bits in groups of a row that share a scale, in packings that no
// other decoder has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"

namespace safetensors::weights {

/// How codes are stored, and their values.
enum class GroupedPacking : std::uint8_t {
  row_pairs,  ///< rows 2i and 2i + 1 in the low and the high nibbles of a row of bytes; signed
  nibbles,    ///< two neighbours in each byte, the first in the low nibble; the code minus 8
  e2m3,       ///< floats of six bits, four in three bytes, the first in the lowest bits
};

/// Consecutive rows of codes:
///
///     value = (value of the code) * scale + offset
struct GroupedRows {
  GroupedPacking packing = GroupedPacking::nibbles;
  const std::byte* codes = nullptr;  ///< of the first of these rows, or of its pair
  std::uint64_t columns = 0;
  std::uint64_t first_row = 0;            ///< number of the first of these rows in the matrix
  std::uint64_t group = 1;                ///< columns that share a scale
  ScaleType scale_type = ScaleType::f32;  ///< u8: the scale is 2^(byte - 127)
  const std::byte* scales = nullptr;      ///< of the first of these rows
  const std::byte* offsets = nullptr;     ///< as the scales, or nullptr
  std::uint64_t row_step = 0;             ///< bytes from the scales of a row to those of the next
  std::uint64_t group_step = 0;           ///< bytes from the scale of a group to the next
  const float* column_scales = nullptr;   ///< see ColumnScales
};

/// Decodes `rows` rows in F32, in the order of the formula.
void dequantize_grouped(const GroupedRows& from, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

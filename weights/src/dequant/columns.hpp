// Decodes weights that are stored transposed: of a weight [N, K], AWQ and GPTQ store a matrix with
// K rows of codes, and matrices of scales and zeros with one row for each group of them.
//
//     value[n, k] = (code[k, n] - zero[g, n]) * scale[g, n],   g the group of k
//
//                 codes, in words of 32 bits, lowest bits first        zeros
//     awq         a word holds 8 n of one k                            the same, a row for each
//     group gptq        a column is a stream of the codes of one n           a row is a stream
//
// In a word of awq, the n of 0 to 7 are in the nibbles 0, 4, 1, 5, 2, 6, 3, 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dequant/dequant.hpp"

namespace safetensors::weights {

enum class ColumnLayout : std::uint8_t { awq, gptq };

/// Parts of the zeros start at a row n that is a multiple of this, and so at a word.
inline constexpr std::uint64_t kZeroRows = 32;
/// The same for the words of awq.
inline constexpr std::uint64_t kAwqRows = 8;

/// Rows of bytes, each `stride` bytes after the one before.
struct StoredRows {
  const std::byte* data = nullptr;
  std::uint64_t stride = 0;
};

/// The parts of rows n of a weight.
struct ColumnCodes {
  ColumnLayout layout = ColumnLayout::awq;
  int bits = 4;                  ///< 2, 3, 4 or 8; 4 for awq
  std::uint64_t columns = 0;     ///< K; for gptq, K * bits is a multiple of 32
  std::uint64_t groups = 0;      ///< at least 1
  std::uint64_t group_size = 0;  ///< columns of a group, at least 1; the last group may have fewer
  /// The group of each column, below `groups`. If empty, column k is in group k / group_size.
  std::span<const std::uint32_t> group_of;
  StoredRows words;             ///< awq: from the row n on that is a multiple of kAwqRows
  StoredRows zeros;             ///< from a multiple of kZeroRows on; no data: all are 2^(bits - 1)
  StoredRows scales;            ///< from the first row n on
  std::uint64_t first_row = 0;  ///< the first n, in the whole weight
  unsigned added_to_zeros = 0;  ///< zero = (stored + this) modulo 2^bits
  ScaleType scale_type = ScaleType::f16;  ///< not u8
};

/// Decodes `rows` rows of a weight.
void dequantize_columns(const ColumnCodes& codes, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

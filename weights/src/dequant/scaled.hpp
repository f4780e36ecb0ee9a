// Decodes rows of codes with scales beside them, for the schemes of src/schemes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"
#include "dequant/scale_tiles.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"

namespace safetensors::weights {

/// Consecutive rows of a matrix of 8-bit floats, or of a stack of matrices, and the scales of the
/// whole stack. A block of `block_rows` x `block_columns` values shares a scale; blocks at the
/// edges of a matrix may be smaller.
struct ScaledRows {
  Dtype type = Dtype::kF8E4M3;        ///< F8_E4M3, F8_E5M2 or one of the FNUZ types
  Dtype scale_type = Dtype::kF32;     ///< F32, F16, BF16; U8 and F8_E8M0 are powers of two
  const std::byte* codes = nullptr;   ///< of the first of these rows
  const std::byte* scales = nullptr;  ///< of the first matrix
  std::uint64_t columns = 0;
  std::uint64_t first_row = 0;  ///< number of the first of these rows in the stack
  std::uint64_t matrix_rows = 1;
  std::uint64_t block_rows = 1;
  std::uint64_t block_columns = 1;
  bool shares_scales = false;  ///< all matrices use the scales of the first
  float global_scale = 1;      ///< multiplies every scale
  ScaleTiles tiles{};          ///< of scales of a byte in tiles, with blocks of one row; then
                               ///< `scales` begins with the band of the first of these rows
  const float* column_scales = nullptr;  ///< see ColumnScales
};

/// Decodes `rows` rows: each value is code * (scale * global scale) in F32.
///
/// Requires: types as above; blocks of at least one value.
void dequantize_scaled(const ScaledRows& from, std::uint64_t rows, Output output, std::byte* to,
                       const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

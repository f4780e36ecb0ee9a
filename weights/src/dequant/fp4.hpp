// Decodes E2M1 codes with scales for groups: a function of memory, without files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"
#include "dequant/part_bytes.hpp"
#include "dequant/scale_tiles.hpp"

namespace safetensors::weights {

/// How a group's factor is computed from its scale, an 8-bit code.
enum class Fp4Scale : std::uint8_t {
  e8m0,             ///< scale; groups of 32
  e4m3_divided,     ///< scale / global scale; groups of 16
  e4m3_multiplied,  ///< scale * global scale; groups of 16
};

/// A stack of matrices of E2M1 codes, two in each byte:
///
///     value = E2M1(code) * factor of its group
struct Fp4Matrices {
  Fp4Scale scale = Fp4Scale::e8m0;
  std::uint64_t columns = 0;  ///< a multiple of the group
  PartBytes codes;            ///< columns / 2 in each row
  PartBytes scales;           ///< columns / group in each row
  /// Global scales in F32, one for each `rows_per_global_scale` rows of the stack.
  PartBytes global_scales;
  std::uint64_t rows_per_global_scale = 1;
  std::uint64_t stride = 1;  ///< row i of the result is row i * stride + offset of the stack
  std::uint64_t offset = 0;
  bool high_first = false;               ///< the first of two codes is in the high nibble
  ScaleTiles tiles{};                    ///< of the scales, if they are in tiles
  const float* column_scales = nullptr;  ///< see ColumnScales

  [[nodiscard]] std::uint64_t group() const noexcept { return scale == Fp4Scale::e8m0 ? 32 : 16; }
};

/// Decodes `rows` rows from row `first` of the result on, in F32 and in the order of the formulas.
///
/// Requires: the parts have the bytes that the rows need.
void dequantize_fp4(const Fp4Matrices& from, std::uint64_t first, std::uint64_t rows, Output output,
                    std::byte* to, const Interrupt& interrupt = {},
                    const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

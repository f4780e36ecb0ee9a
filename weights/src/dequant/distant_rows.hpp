// Decodes codes of two or four bits where distant rows share a byte, as optimum-quanto packs them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"
#include "dequant/part_bytes.hpp"

namespace safetensors::weights {

/// A flattened matrix in groups of `group` values. With P = lines, and b bits:
///
///     bytes     [P, group]
///     group r   bits b * (r / P) and up of line r % P
///     value     code * scale[r] - shift[r], or (code - shift[r]) * scale[r]
struct DistantRows {
  unsigned bits = 4;
  std::uint64_t columns = 0;  ///< of the matrix, a multiple of `group`
  std::uint64_t group = 1;
  std::uint64_t lines = 1;
  PartBytes codes;
  const float* scales = nullptr;  ///< from the first group of these rows on
  const float* shifts = nullptr;  ///< likewise
  bool shifts_codes = false;      ///< the shift is subtracted from the code
};

/// Decodes `rows` rows from row `first` on, in F32 and in the order of the formula.
///
/// Requires: the codes have the lines of these rows.
void dequantize_distant(const DistantRows& from, std::uint64_t first, std::uint64_t rows,
                        Output output, std::byte* to, const Interrupt& interrupt = {},
                        const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

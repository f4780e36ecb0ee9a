// Decodes rows of MXFP4: 4-bit floats in groups of 32, each with a power of two as scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "safetensors/buffer.hpp"
#include "weights/dequant/dequant.hpp"

namespace safetensors::weights {

/// Rows of MXFP4 codes (E2M1, two in a byte, the first in the low nibble) and E8M0 scales. A row of
/// the result is every `stride`-th row of the input, from `first` on.
struct Mxfp4Rows {
  const std::byte* codes = nullptr;   ///< columns / 2 bytes a row
  const std::byte* scales = nullptr;  ///< columns / 32 bytes a row
  std::uint64_t columns = 0;          ///< a multiple of 32
  std::uint64_t stride = 1;
  std::uint64_t first = 0;
};

/// Decodes `rows` rows: E2M1(code) * 2^(scale - 127). The scale 255 is NaN.
void dequantize_mxfp4(const Mxfp4Rows& from, std::uint64_t rows, Output output, std::byte* to,
                      const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

// Decodes the four-bit types of bitsandbytes: codes that index a table of floats, in blocks that
// share a scale. Blocks divide the flattened weight, and may cross its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dequant/dequant.hpp"

namespace safetensors::weights {

/// Values of the 16 codes.
struct FloatTable {
  float values[16];
};
extern const FloatTable kNf4Values;
extern const FloatTable kFp4Values;

/// The scales of blocks: F32 numbers, or, nested, codes of one byte, which stand for
///
///     map[code] * outer[block / outer_block] + offset
struct BlockScales {
  const std::byte* scales = nullptr;  ///< little-endian, from that of `first_block` on
  std::uint64_t first_block = 0;      ///< number of the block in the weight
  const std::byte* map = nullptr;     ///< nullptr: not nested; else 256 F32 numbers
  const std::byte* outer = nullptr;   ///< F32 numbers, of the whole weight
  std::uint64_t outer_block = 1;
  float offset = 0;
};

/// Some consecutive values of a weight.
struct TableCodes {
  const FloatTable* table = nullptr;
  const std::byte* codes = nullptr;  ///< of the weight's value `begin`, or of the one before it;
                                     ///< value 2j is in the high nibble of byte j
  std::uint64_t begin = 0;           ///< number of the first value in the flattened weight
  std::uint64_t block_size = 64;     ///< values of a block, a multiple of 32
  BlockScales scales;
};

/// Decodes `count` values: table[code] * scale.
void dequantize_table4(const TableCodes& codes, std::uint64_t count, Output output, std::byte* to,
                       const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

// The inner loops of dequantisation: one build for each instruction set, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dequant/ggml_types.hpp"

namespace safetensors::weights {

/// One build of the inner loops. All builds give the same bits: they use no fused multiply and add.
///
/// Requires: floats are aligned; `from` may be unaligned, and is little-endian. A kernel reads and
/// writes nothing beyond what its counts say.
struct Kernels {
  /// Decodes `count` blocks.
  using Blocks = void (*)(const std::uint8_t* from, std::size_t count, float* to) noexcept;
  /// Decodes `groups` groups of `group_size` values, each with its scale; offsets are the biases of
  /// affine packs or the zero points of integers, and nothing else uses them. Reads nothing at or
  /// after `end`.
  using Groups = void (*)(const std::uint8_t* codes, const std::uint8_t* end, std::size_t groups,
                          std::size_t group_size, const float* scales, const float* offsets,
                          float* to) noexcept;
  /// Rounds to 16-bit values, to nearest even. `to` may be unaligned.
  using Narrow = void (*)(const float* from, std::size_t count, std::uint8_t* to) noexcept;

  /// Decodes `count` codes of one scale.
  using Scaled = void (*)(const std::uint8_t* codes, std::size_t count, float scale,
                          float* to) noexcept;
  /// Decodes `count` codes of one byte by a table of 256 values, and multiplies by the scale.
  using Looked = void (*)(const std::uint8_t* codes, std::size_t count, const float* table,
                          float scale, float* to) noexcept;

  static constexpr std::size_t kWidths = 9;

  const char* name;
  Blocks blocks[ggml::kEnd];  ///< by number of the GGUF type; nullptr where none is decoded
  Groups affine[kWidths];     ///< by bits; nullptr where there is none. Groups of 32 * n values
  Groups integers[kWidths];   ///< likewise: (code - zero) * scale
  Groups int8;                ///< the same for signed bytes
  Groups shifted_nibbles;     ///< (code - 8) * scale + offset
  Groups fp4;                 ///< codes E2M1
  Groups fp4_high;            ///< likewise; the first of two codes is in the high nibble
  Groups fp6;                 ///< codes E2M3. Groups of 16 * n values
  Groups fp8;                 ///< codes E4M3
  Scaled e4m3;
  Looked bytes;
  /// Decodes groups of signed codes of four bits: those from bit `shift`, 0 or 4, of each byte.
  void (*nibble_of_bytes)(const std::uint8_t* codes, unsigned shift, std::size_t groups,
                          std::size_t group_size, const float* scales, float* to) noexcept;
  /// Multiplies values by factors.
  void (*multiply)(const float* factors, std::size_t count, float* values) noexcept;
  /// Transposes a matrix of 32-bit words. Its rows are `stride` bytes apart.
  void (*transpose_words)(const std::uint8_t* from, std::size_t stride, std::size_t rows,
                          std::size_t columns, std::uint8_t* to) noexcept;
  /// Decodes `groups` groups of words: (code - zero) * scale of the four bits from `shift` on.
  void (*nibble_of_words)(const std::uint8_t* words, unsigned shift, std::size_t groups,
                          std::size_t group_size, const float* scales, const float* zeros,
                          float* to) noexcept;
  /// Replaces codes by (code - zero) * scale, with the zero and the scale of each one's group.
  void (*scale_by_group)(const std::uint32_t* group_of, std::size_t count, const float* scales,
                         const float* zeros, float* codes) noexcept;
  /// Decodes blocks of codes of four bits, the first of a byte in its high nibble: table[code] *
  /// scale. The table has 16 values, a block a multiple of 32.
  void (*table4)(const std::uint8_t* codes, std::size_t blocks, std::size_t block_size,
                 const float* table, const float* scales, float* to) noexcept;
  /// Decodes signed bytes: code * first * second, from left to right.
  void (*scaled_i8)(const std::uint8_t* codes, std::size_t count, float first, float second,
                    float* to) noexcept;
  // Of rotated integers, see RotatedRows.
  /// Writes codes of four bits as bytes; `sign` is 8 for signed codes and 0 for others. `count` is
  /// even.
  void (*unpack_nibbles)(const std::uint8_t* codes, std::size_t count, std::uint8_t sign,
                         std::int8_t* to) noexcept;
  /// Adds two more bits to each of `count` codes.
  void (*add_upper_bits)(const std::uint8_t* upper, std::size_t count, std::int8_t* codes) noexcept;
  /// Replaces codes of four bits by round(values[code] * scale of the group).
  void (*round_nibbles)(std::int8_t* codes, std::size_t groups, std::size_t group_size,
                        const float* scales, const float* values) noexcept;
  /// Replaces codes of six bits by round((code - 32) * scale of the group).
  void (*round_six_bits)(std::int8_t* codes, std::size_t groups, std::size_t group_size,
                         const float* scales) noexcept;
  /// Writes the sums times `scale` and `inverse_root`, from left to right. `count` is a multiple of
  /// `rotation`; `sums` has room for as many, rounded up to a multiple of 16.
  void (*rotate)(const std::int8_t* integers, std::size_t count, std::size_t rotation, float scale,
                 float inverse_root, std::int16_t* sums, float* to) noexcept;
  Narrow to_f16;
  Narrow to_bf16;
  /// Returns how many finite values become infinite in F16.
  std::size_t (*count_f16_overflow)(const float* from, std::size_t count) noexcept;
};

/// Returns the builds that this machine can run, the fastest last.
[[nodiscard]] std::span<const Kernels* const> usable_kernels() noexcept;

/// Returns the fastest build that this machine can run.
[[nodiscard]] const Kernels& best_kernels() noexcept;

// Defined by kernels_*.cpp. kAvx2Kernels exists on x86 only. Use no build that usable_kernels()
// does not list.
extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;

}  // namespace safetensors::weights

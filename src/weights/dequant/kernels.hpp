// The inner loops of dequantising, once for each instruction set, and the choice among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "weights/dequant/ggml_types.hpp"

namespace safetensors::weights {

/// One build of the inner loops. All builds give the same bits. `from` may be unaligned and is
/// little-endian; floats are aligned, as C++ wants them. None of them reads or writes anything
/// beyond what its counts say.
struct Kernels {
  /// Decodes `count` blocks.
  using Blocks = void (*)(const std::uint8_t* from, std::size_t count, float* to) noexcept;
  /// Decodes `groups` groups of values that share a scale; biases are for affine packs only.
  /// Nothing at or after `end` is read.
  using Groups = void (*)(const std::uint8_t* codes, const std::uint8_t* end, std::size_t groups,
                          std::size_t group_size, const float* scales, const float* biases,
                          float* to) noexcept;
  /// Rounds to 16-bit values, to nearest even; `to` may be unaligned.
  using Narrow = void (*)(const float* from, std::size_t count, std::uint8_t* to) noexcept;

  static constexpr std::size_t kWidths = 9;

  const char* name;
  Blocks blocks[ggml::kEnd];  ///< by number of the GGUF type; nullptr where none is decoded
  Groups affine[kWidths];     ///< by bits; nullptr where there is none
  Groups fp4;                 ///< codes E2M1
  Groups fp8;                 ///< codes E4M3
  Narrow to_f16;
  Narrow to_bf16;
  /// How many finite values become infinite in F16.
  std::size_t (*count_f16_overflow)(const float* from, std::size_t count) noexcept;
};

/// The builds that this machine can run, plainest first.
[[nodiscard]] std::span<const Kernels* const> usable_kernels() noexcept;

/// The fastest of them.
[[nodiscard]] const Kernels& best_kernels() noexcept;

/// Defined by kernels_*.cpp; not all of them are part of every build. Do not use one that
/// usable_kernels() does not list.
extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;

}  // namespace safetensors::weights

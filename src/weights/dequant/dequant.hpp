// Turns stored bytes into values: pure functions of memory.
//
// What is read is little-endian and may be unaligned; what is written has the byte order of the
// machine and may be unaligned as well. `from` and `to` must not overlap. Much work is shared out
// among threads. `interrupt` may throw: then part of the output is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/weights/types.hpp"
#include "weights/dequant/kernels.hpp"

namespace safetensors::weights {

/// Type of the values that are written. F16 and BF16 are the F32 value, rounded once to nearest
/// even; values too large become infinite.
enum class Output : std::uint8_t { f32, f16, bf16 };

/// Bytes of one value.
[[nodiscard]] constexpr std::size_t size_of(Output output) noexcept {
  return output == Output::f32 ? 4 : 2;
}

/// Decodes blocks of a type of GGUF. Throws Error `unsupported` for types that can_dequantize()
/// does not know. F64 and integers become the nearest F32.
void dequantize_blocks(std::uint32_t ggml_type, const std::byte* from, std::uint64_t blocks,
                       Output output, std::byte* to, const Interrupt& interrupt = {},
                       const Kernels& kernels = best_kernels());

/// How a pack's scales and biases are stored.
enum class ScaleType : std::uint8_t { f16, bf16, f32, u8 };

/// Rows of an MLX pack; leading dimensions are rows.
struct PackRows {
  QuantParams params;
  ScaleType scale_type = ScaleType::f16;
  std::uint64_t columns = 0;          ///< values of a row, a multiple of the group size
  const std::byte* words = nullptr;   ///< of the first of these rows
  const std::byte* scales = nullptr;  ///< likewise
  const std::byte* biases = nullptr;  ///< likewise; affine only, of the scales' type
  /// nvfp4 only: F32, one for each `rows_per_global_scale` rows of the whole pack, from its start,
  /// in which the first of these rows is `first_row`; nullptr when there are none.
  const std::byte* global_scales = nullptr;
  std::uint64_t rows_per_global_scale = 1;
  std::uint64_t first_row = 0;
};

/// Whether MLX has packs of these parameters.
[[nodiscard]] bool is_known(const QuantParams& params) noexcept;

/// Decodes `rows` rows of a pack. Throws Error `quant_mismatch` for parameters that is_known() does
/// not know, or that do not fit the scales and columns.
void dequantize_pack(const PackRows& pack, std::uint64_t rows, Output output, std::byte* to,
                     const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

/// Whether convert_values() takes it: complex numbers have no one value, and floats of six bits no
/// one packing.
[[nodiscard]] bool can_convert(Dtype dtype) noexcept;

/// Converts plain values. F64 and integers become the nearest F32, booleans 0 and 1. For F4 an odd
/// `count` ends in the low half of the last byte. Throws Error `unsupported` for types that
/// can_convert() does not take. Values of the type that is asked for are copied as they are.
void convert_values(Dtype dtype, const std::byte* from, std::uint64_t count, Output output,
                    std::byte* to, const Interrupt& interrupt = {},
                    const Kernels& kernels = best_kernels());

/// Rounds F32, BF16 or F64 values to F16, and returns how many finite ones became infinite. Throws
/// as convert_values().
std::uint64_t to_f16_values(Dtype dtype, const std::byte* from, std::uint64_t count, std::byte* to,
                            const Interrupt& interrupt = {},
                            const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

// Decodes stored bytes to values: functions of memory, without files.
//
// Input is little-endian, output has the machine's byte order, and both may be unaligned. `from`
// and `to` must not overlap. Large inputs are decoded by several threads. If `interrupt` throws, a
// part of the output has been written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "dequant/kernels.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Type of the output. F16 and BF16 are the F32 value, rounded once to nearest even; values that
/// are too large become infinite.
enum class Output : std::uint8_t { f32, f16, bf16 };

/// Returns the size of one value in bytes.
[[nodiscard]] constexpr std::size_t size_of(Output output) noexcept {
  return output == Output::f32 ? 4 : 2;
}

/// Decodes blocks of a GGUF type. F64 and integers become the nearest F32.
///
/// Throws: unsupported if can_dequantize() is false for the type.
void dequantize_blocks(std::uint32_t ggml_type, const std::byte* from, std::uint64_t blocks,
                       Output output, std::byte* to, const Interrupt& interrupt = {},
                       const Kernels& kernels = best_kernels());

/// Changes decoded values in place, before they are rounded: `count` values from number `first` of
/// the tensor on. Several threads may call it at once.
using ChangeValues = std::function<void(std::uint64_t first, std::size_t count, float* values)>;

/// Decodes the values `begin` to `end` of a tensor, of which `from` are the blocks that have them.
/// `change` may be empty; it may also get the other values of these blocks.
///
/// Throws: as dequantize_blocks().
void dequantize_values(std::uint32_t ggml_type, const std::byte* from, std::uint64_t begin,
                       std::uint64_t end, const ChangeValues& change, Output output, std::byte* to,
                       const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

/// Type of a pack's scales and biases; u8 is E8M0 or, for nvfp4, E4M3.
enum class ScaleType : std::uint8_t { f16, bf16, f32, u8 };

/// Consecutive rows of an MLX pack. All leading axes together count as rows.
struct PackRows {
  QuantParams params;
  ScaleType scale_type = ScaleType::f16;
  std::uint64_t columns = 0;          ///< values of a row, a multiple of the group size
  const std::byte* words = nullptr;   ///< of the first of these rows
  const std::byte* scales = nullptr;  ///< likewise
  const std::byte* biases = nullptr;  ///< likewise; affine only, of the scales' type
  /// nvfp4 only, else nullptr: F32 numbers, one for each `rows_per_global_scale` rows of the whole
  /// pack. The first row here is row `first_row` of the whole pack.
  const std::byte* global_scales = nullptr;
  std::uint64_t rows_per_global_scale = 1;
  std::uint64_t first_row = 0;
};

/// Returns whether MLX has packs with these parameters.
[[nodiscard]] bool is_known(const QuantParams& params) noexcept;

/// Decodes `rows` rows of a pack.
///
/// Throws: quant_mismatch if is_known() is false for the parameters, or if they do not fit the type
///   of the scales or the number of columns.
void dequantize_pack(const PackRows& pack, std::uint64_t rows, Output output, std::byte* to,
                     const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

/// Returns whether convert_values() takes the type. It refuses complex numbers, which are not one
/// value, and floats of six bits, for which writers use different packings.
[[nodiscard]] bool can_convert(Dtype dtype) noexcept;

/// Converts plain values. F64 and integers become the nearest F32, booleans 0 and 1. Values that
/// have the output type are copied unchanged. For F4, an odd `count` ends in the low nibble of a
/// byte.
///
/// Throws: unsupported if can_convert() is false for the type.
void convert_values(Dtype dtype, const std::byte* from, std::uint64_t count, Output output,
                    std::byte* to, const Interrupt& interrupt = {},
                    const Kernels& kernels = best_kernels());

/// Rounds values to F16 and returns how many finite ones became infinite.
///
/// Throws: as convert_values().
std::uint64_t to_f16_values(Dtype dtype, const std::byte* from, std::uint64_t count, std::byte* to,
                            const Interrupt& interrupt = {},
                            const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

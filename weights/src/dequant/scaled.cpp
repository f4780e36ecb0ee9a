#include "dequant/scaled.hpp"

#include <algorithm>

#include "common/divide_up.hpp"
#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

const std::uint8_t* at(const std::byte* from, std::uint64_t offset) noexcept {
  return reinterpret_cast<const std::uint8_t*>(from) + offset;
}

const CodeTable& table_of(Dtype type) noexcept {
  switch (type) {
    case Dtype::kF8E5M2:
      return kE5M2Values;
    case Dtype::kF8E4M3FNUZ:
      return kE4M3FnuzValues;
    case Dtype::kF8E5M2FNUZ:
      return kE5M2FnuzValues;
    default:
      return kE4M3Values;
  }
}

/// Converts scales to F32.
void load_scales(Dtype type, const std::byte* from, std::size_t count, float* to,
                 const Kernels& kernels) noexcept {
  const std::uint8_t* const bytes = at(from, 0);
  switch (type) {
    case Dtype::kF16:
      kernels.blocks[ggml::kF16](bytes, count, to);
      break;
    case Dtype::kBF16:
      kernels.blocks[ggml::kBF16](bytes, count, to);
      break;
    case Dtype::kF32:
      kernels.blocks[ggml::kF32](bytes, count, to);
      break;
    default:
      for (std::size_t i = 0; i < count; ++i) to[i] = kE8M0Values.values[bytes[i]];
  }
}

class ScaledDecoder {
 public:
  ScaledDecoder(const ScaledRows& from, const Kernels& kernels)
      : from_(from),
        kernels_(kernels),
        scale_bytes_(bit_size(from.scale_type) / 8),
        scales_of_row_(divide_up(from.columns, from.block_columns)),
        scales_of_matrix_(scales_of_row_ * divide_up(from.matrix_rows, from.block_rows)),
        first_band_(from.tiles.used() ? from.tiles.band_of(from.first_row) : 0) {}

  /// Decodes a piece of a row, see decode_rows().
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    const std::uint64_t in_stack = from_.first_row + row;
    const std::uint64_t matrix = from_.shares_scales ? 0 : in_stack / from_.matrix_rows;
    const std::uint64_t block_row = in_stack % from_.matrix_rows / from_.block_rows;
    const std::uint64_t block = begin / from_.block_columns;
    const auto blocks =
        static_cast<std::size_t>((begin + count - 1) / from_.block_columns - block + 1);
    float scales[kScratchValues + 1];
    if (from_.tiles.used()) {
      std::uint8_t bytes[kScratchValues + 1];
      const std::uint64_t band = from_.tiles.band_of(in_stack) - first_band_;
      from_.tiles.copy(at(from_.scales, band), in_stack, block, blocks, bytes);
      load_scales(from_.scale_type, reinterpret_cast<const std::byte*>(bytes), blocks, scales,
                  kernels_);
    } else {
      const std::uint64_t first = matrix * scales_of_matrix_ + block_row * scales_of_row_ + block;
      load_scales(from_.scale_type, from_.scales + first * scale_bytes_, blocks, scales, kernels_);
    }
    for (std::size_t i = 0; i < blocks; ++i) scales[i] *= from_.global_scale;
    const std::uint8_t* codes = at(from_.codes, row * from_.columns + begin);
    in_groups(begin, count, from_.block_columns,
              [&](std::size_t i, std::size_t some, std::size_t each, std::uint64_t number) {
                const float* const of_run = scales + (number - block);
                if (from_.type == Dtype::kF8E4M3 && each % 16 == 0) {
                  kernels_.fp8(codes + i, codes + count, some, each, of_run, nullptr, to + i);
                  return;
                }
                for (std::size_t k = 0; k < some; ++k) {
                  decode_block(codes + i + k * each, each, of_run[k], to + i + k * each);
                }
              });
  }

 private:
  void decode_block(const std::uint8_t* codes, std::size_t count, float scale, float* to) const {
    if (from_.type == Dtype::kF8E4M3) {
      kernels_.e4m3(codes, count, scale, to);
    } else {
      kernels_.bytes(codes, count, table_of(from_.type).values, scale, to);
    }
  }

  const ScaledRows& from_;
  const Kernels& kernels_;
  std::size_t scale_bytes_;
  std::uint64_t scales_of_row_;
  std::uint64_t scales_of_matrix_;
  std::uint64_t first_band_;
};

}  // namespace

void dequantize_scaled(const ScaledRows& from, std::uint64_t rows, Output output, std::byte* to,
                       const Interrupt& interrupt, const Kernels& kernels) {
  if (rows == 0 || from.columns == 0) return;
  decode_rows(kernels, rows, from.columns, output, to, interrupt, ScaledDecoder(from, kernels),
              {from.column_scales});
}

}  // namespace safetensors::weights

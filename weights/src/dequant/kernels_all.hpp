// One build of all kernels, in namespace SAFETENSORS_VARIANT.
#pragma once

#include <type_traits>

#include "dequant/ggml_types.hpp"
#include "dequant/kernel_blocks.hpp"
#include "dequant/kernel_columns.hpp"
#include "dequant/kernel_iq.hpp"
#include "dequant/kernel_k.hpp"
#include "dequant/kernel_pack.hpp"
#include "dequant/kernel_plain.hpp"
#include "dequant/kernel_rotated.hpp"
#include "dequant/kernel_scaled.hpp"
#include "dequant/kernels.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// The block that a kernel for single blocks takes.
template <typename Kernel>
struct BlockOf;
template <typename Block>
struct BlockOf<void (*)(const Block&, float*) noexcept> {
  using Type = Block;
};

/// Decodes `count` blocks, of `values` values each, by a kernel for single blocks.
template <auto kernel, std::size_t values>
void each_block(const U8* SAFETENSORS_RESTRICT from, std::size_t count,
                float* SAFETENSORS_RESTRICT to) noexcept {
  const auto* block = reinterpret_cast<const BlockOf<decltype(kernel)>::Type*>(from);
  for (; count != 0; --count, ++block, to += values) kernel(*block, to);
}

/// Returns what a row of SAFETENSORS_GGML_TYPES puts into Kernels::blocks.
template <auto kernel, std::size_t values, std::size_t nbytes>
consteval Kernels::Blocks kernel_of_row() noexcept {
  if constexpr (std::is_convertible_v<decltype(kernel), Kernels::Blocks>) {
    return kernel;  // of a plain type, or nullptr
  } else {
    using Block = BlockOf<decltype(kernel)>::Type;
    static_assert(sizeof(Block) == nbytes && alignof(Block) == 1);
    return &each_block<kernel, values>;
  }
}

constexpr Kernels make_kernels(const char* name) noexcept {
  Kernels k{};
  k.name = name;
#define SAFETENSORS_ROW(id, name, elements, nbytes, kernel) \
  k.blocks[id] = kernel_of_row<kernel, elements, nbytes>();
  SAFETENSORS_GGML_TYPES(SAFETENSORS_ROW)
#undef SAFETENSORS_ROW
  k.affine[1] = &grouped<1, Affine>;
  k.affine[2] = &grouped<2, Affine>;
  k.affine[3] = &grouped<3, Affine>;
  k.affine[4] = &grouped<4, Affine>;
  k.affine[5] = &grouped<5, Affine>;
  k.affine[6] = &grouped<6, Affine>;
  k.affine[8] = &grouped<8, Affine>;
  k.integers[1] = &grouped<1, Integers>;
  k.integers[2] = &grouped<2, Integers>;
  k.integers[3] = &grouped<3, Integers>;
  k.integers[4] = &grouped<4, Integers>;
  k.integers[5] = &grouped<5, Integers>;
  k.integers[6] = &grouped<6, Integers>;
  k.integers[7] = &grouped<7, Integers>;
  k.integers[8] = &grouped<8, Integers>;
  k.int8 = &grouped<8, SignedIntegers>;
  k.shifted_nibbles = &grouped<4, ShiftedNibbles>;
  k.fp4 = &fp4<false>;
  k.fp4_high = &fp4<true>;
  k.fp6 = &fp6;
  k.fp8 = &fp8;
  k.e4m3 = &e4m3;
  k.bytes = &bytes_by_table;
  k.nibble_of_bytes = &nibble_of_bytes;
  k.multiply = &multiply;
  k.transpose_words = &transpose_words;
  k.nibble_of_words = &nibble_of_words;
  k.scale_by_group = &scale_by_group;
  k.table4 = &table4;
  k.scaled_i8 = &scaled_i8;
  k.unpack_nibbles = &unpack_nibbles;
  k.add_upper_bits = &add_upper_bits;
  k.round_nibbles = &round_nibbles;
  k.round_six_bits = &round_six_bits;
  k.rotate = &rotate;
  k.to_f16 = &to_f16;
  k.to_bf16 = &to_bf16;
  k.count_f16_overflow = &count_f16_overflow;
  return k;
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

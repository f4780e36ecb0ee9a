// One build of all kernels, in namespace SAFETENSORS_VARIANT.
#pragma once

#include "weights/dequant/ggml_types.hpp"
#include "weights/dequant/kernel_blocks.hpp"
#include "weights/dequant/kernel_iq.hpp"
#include "weights/dequant/kernel_k.hpp"
#include "weights/dequant/kernel_pack.hpp"
#include "weights/dequant/kernel_plain.hpp"
#include "weights/dequant/kernels.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

constexpr Kernels make_kernels(const char* name) noexcept {
  Kernels k{};
  k.name = name;
  k.blocks[ggml::kF32] = &f32;
  k.blocks[ggml::kF16] = &f16;
  k.blocks[ggml::kBF16] = &bf16;
  k.blocks[ggml::kF64] = &plain<U64, double>;
  k.blocks[ggml::kI8] = &plain<U8, std::int8_t>;
  k.blocks[ggml::kI16] = &plain<U16, std::int16_t>;
  k.blocks[ggml::kI32] = &plain<U32, std::int32_t>;
  k.blocks[ggml::kI64] = &plain<U64, std::int64_t>;
  k.blocks[ggml::kQ4_0] = &q4_0;
  k.blocks[ggml::kQ4_1] = &q4_1;
  k.blocks[ggml::kQ5_0] = &q5_0;
  k.blocks[ggml::kQ5_1] = &q5_1;
  k.blocks[ggml::kQ8_0] = &q8_0;
  k.blocks[ggml::kQ2_K] = &q2_k;
  k.blocks[ggml::kQ3_K] = &q3_k;
  k.blocks[ggml::kQ4_K] = &q4_k;
  k.blocks[ggml::kQ5_K] = &q5_k;
  k.blocks[ggml::kQ6_K] = &q6_k;
  k.blocks[ggml::kIQ1_S] = &iq1_s;
  k.blocks[ggml::kIQ1_M] = &iq1_m;
  k.blocks[ggml::kIQ2_XXS] = &iq2_xxs;
  k.blocks[ggml::kIQ2_XS] = &iq2_xs;
  k.blocks[ggml::kIQ2_S] = &iq2_s;
  k.blocks[ggml::kIQ3_XXS] = &iq3_xxs;
  k.blocks[ggml::kIQ3_S] = &iq3_s;
  k.blocks[ggml::kIQ4_NL] = &iq4_nl;
  k.blocks[ggml::kIQ4_XS] = &iq4_xs;
  k.blocks[ggml::kTQ1_0] = &tq1_0;
  k.blocks[ggml::kTQ2_0] = &tq2_0;
  k.blocks[ggml::kMXFP4] = &mxfp4;
  k.blocks[ggml::kNVFP4] = &nvfp4;
  k.blocks[ggml::kQ1_0] = &q1_0;
  k.blocks[ggml::kQ2_0] = &q2_0;
  k.affine[1] = &affine<1>;
  k.affine[2] = &affine<2>;
  k.affine[3] = &affine<3>;
  k.affine[4] = &affine<4>;
  k.affine[5] = &affine<5>;
  k.affine[6] = &affine<6>;
  k.affine[8] = &affine<8>;
  k.fp4 = &fp4;
  k.fp8 = &fp8;
  k.to_f16 = &to_f16;
  k.to_bf16 = &to_bf16;
  k.count_f16_overflow = &count_f16_overflow;
  return k;
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT

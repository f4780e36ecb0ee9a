#include "weights/dequant/ggml_types.hpp"

#include <array>

namespace safetensors::weights {
namespace {

// By number. 4, 5, 31 to 33 and 36 to 38 were types once.
constexpr std::array<GgmlType, 35> kTypes{{{ggml::kF32, "F32", 1, 4},
                                           {ggml::kF16, "F16", 1, 2},
                                           {ggml::kQ4_0, "Q4_0", 32, 18},
                                           {ggml::kQ4_1, "Q4_1", 32, 20},
                                           {ggml::kQ5_0, "Q5_0", 32, 22},
                                           {ggml::kQ5_1, "Q5_1", 32, 24},
                                           {ggml::kQ8_0, "Q8_0", 32, 34},
                                           {ggml::kQ8_1, "Q8_1", 32, 36},
                                           {ggml::kQ2_K, "Q2_K", 256, 84},
                                           {ggml::kQ3_K, "Q3_K", 256, 110},
                                           {ggml::kQ4_K, "Q4_K", 256, 144},
                                           {ggml::kQ5_K, "Q5_K", 256, 176},
                                           {ggml::kQ6_K, "Q6_K", 256, 210},
                                           {ggml::kQ8_K, "Q8_K", 256, 292},
                                           {ggml::kIQ2_XXS, "IQ2_XXS", 256, 66},
                                           {ggml::kIQ2_XS, "IQ2_XS", 256, 74},
                                           {ggml::kIQ3_XXS, "IQ3_XXS", 256, 98},
                                           {ggml::kIQ1_S, "IQ1_S", 256, 50},
                                           {ggml::kIQ4_NL, "IQ4_NL", 32, 18},
                                           {ggml::kIQ3_S, "IQ3_S", 256, 110},
                                           {ggml::kIQ2_S, "IQ2_S", 256, 82},
                                           {ggml::kIQ4_XS, "IQ4_XS", 256, 136},
                                           {ggml::kI8, "I8", 1, 1},
                                           {ggml::kI16, "I16", 1, 2},
                                           {ggml::kI32, "I32", 1, 4},
                                           {ggml::kI64, "I64", 1, 8},
                                           {ggml::kF64, "F64", 1, 8},
                                           {ggml::kIQ1_M, "IQ1_M", 256, 56},
                                           {ggml::kBF16, "BF16", 1, 2},
                                           {ggml::kTQ1_0, "TQ1_0", 256, 54},
                                           {ggml::kTQ2_0, "TQ2_0", 256, 66},
                                           {ggml::kMXFP4, "MXFP4", 32, 17},
                                           {ggml::kNVFP4, "NVFP4", 64, 36},
                                           {ggml::kQ1_0, "Q1_0", 128, 18},
                                           {ggml::kQ2_0, "Q2_0", 64, 18}}};

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t id) noexcept {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

bool can_dequantize(std::uint32_t id) noexcept {
  return id != ggml::kQ8_1 && id != ggml::kQ8_K && find_ggml_type(id) != nullptr;
}

}  // namespace safetensors::weights

#include "schemes/refused.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/text.hpp"
#include "common/fail.hpp"

namespace safetensors::weights {
namespace {

/// Returns whether values of this type are plain numbers in every scheme.
bool is_plain_float(Dtype dtype) noexcept {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

/// A quant_method whose tensors are decoded, and their schemes; without any, all but ComfyUI's.
struct Method {
  std::string_view name;
  std::array<std::string_view, 3> schemes;
};
constexpr Method kMethods[] = {
    {"awq", {"awq"}},
    {"bitsandbytes", {"bnb_nf4", "bnb_fp4", "bnb_int8"}},
    {"compressed-tensors", {}},
    {"fbgemm_fp8", {"fp8"}},
    {"fp8", {"fp8", "mxfp8", "mxfp4"}},  // DeepSeek's experts are MXFP4 beside FP8
    {"gptq", {"gptq"}},
    {"modelopt", {}},
    {"modelopt_fp4", {}},  // vLLM and SGLang distinguish modelopt's algorithms
    {"modelopt_mixed", {}},
    {"modelopt_mxfp8", {}},
    {"mxfp4", {"mxfp4"}},
    {"mxfp8", {"mxfp8"}},
    {"quanto", {}},
    {"torchao", {}},
    {"w8a8_fp8", {"fp8"}},  // of SGLang: a scale for each row
    {"w8a8_int8", {"int8"}},
};

const Method* find_method(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(kMethods, name, &Method::name);
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace

bool is_decoded_config(const QuantConfig& quant) noexcept {
  return quant.method.empty() || (quant.refusal.empty() && find_method(quant.method) != nullptr);
}

std::string refusal_by_config(const SourceTensor& tensor, const QuantConfig& quant) {
  const bool is_plain = is_plain_float(tensor.info->dtype);
  // What is done to activations concerns matrices of any type.
  if (!quant.refusal.empty() && (!is_plain || tensor.info->shape.size() > 1)) return quant.refusal;
  if (quant.method.empty() || is_plain) return {};
  return "scheme \"" + clipped(quant.method) + "\" is not decoded";
}

void check_method(const QuantConfig& quant, const WeightInfo& info) {
  if (quant.method.empty()) return;
  const std::array<std::string_view, 3>& schemes = find_method(quant.method)->schemes;
  // ComfyUI's markers are of no method.
  const bool fits = schemes.front().empty()
                        ? info.scheme != "comfy"
                        : std::ranges::find(schemes, info.scheme) != schemes.end();
  if (fits) return;
  fail(Errc::quant_mismatch, quant.path, info.source,
       "quant_method is `" + quant.method + "`, but its tensors are those of " +
           std::string(info.scheme));
}

}  // namespace safetensors::weights

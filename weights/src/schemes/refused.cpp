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

/// Values of quant_method whose tensors no scheme here may claim, although some look alike.
constexpr std::string_view kRefusedMethods[] = {
    "aqlm", "auto-round", "bitnet", "eetq", "fouroversix", "fp_quant", "higgs",
    "hqq",  "metal",      "quark",  "sinq", "spqr",        "vptq",
};

/// A quant_method, and the schemes of its tensors.
struct Method {
  std::string_view name;
  std::array<std::string_view, 3> schemes;
};
// Others, such as compressed-tensors, write several.
constexpr Method kMethods[] = {
    {"awq", {"awq"}},
    {"bitsandbytes", {"bnb_nf4", "bnb_fp4", "bnb_int8"}},
    {"fbgemm_fp8", {"fp8"}},
    {"fp8", {"fp8", "mxfp8", "mxfp4"}},  // DeepSeek's experts are MXFP4 beside FP8
    {"gptq", {"gptq"}},
    {"mxfp4", {"mxfp4"}},
    {"mxfp8", {"mxfp8"}},
};

}  // namespace

bool is_refused(std::string_view method) noexcept {
  return std::ranges::find(kRefusedMethods, method) != std::end(kRefusedMethods);
}

std::string refusal_by_method(const SourceTensor& tensor, std::string_view method) {
  if (method.empty() || is_plain_float(tensor.info->dtype)) return {};
  return "scheme \"" + clipped(method) + "\" is not decoded";
}

void check_method(const QuantConfig& quant, const WeightInfo& info) {
  if (quant.method.empty()) return;
  const auto* const method = std::ranges::find(kMethods, quant.method, &Method::name);
  // ComfyUI's markers are of no method.
  const bool fits = method == std::end(kMethods)
                        ? info.scheme != "comfy"
                        : std::ranges::find(method->schemes, info.scheme) != method->schemes.end();
  if (fits) return;
  fail(Errc::quant_mismatch, quant.path, info.source,
       "quant_method is `" + quant.method + "`, but its tensors are those of " +
           std::string(info.scheme));
}

}  // namespace safetensors::weights

#include "weights/schemes/refused.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/text.hpp"
#include "weights/fail.hpp"

namespace safetensors::weights {
namespace {

/// A tensor whose name ends in `end` belongs to the scheme if there is another tensor with `beside`
/// instead of `end`. Rules are tried in order.
struct SchemeRule {
  std::string_view end;
  std::string_view beside;
  std::string_view scheme;
};
// The endings are those of the libraries' own checkpoints: AutoGPTQ and AutoAWQ,
// compressed-tensors, bitsandbytes, and the FP8 checkpoints of DeepSeek and others.
constexpr SchemeRule kRules[] = {
    {".qweight", ".scales", "gptq or awq"},
    {".qzeros", ".qweight", "gptq or awq"},
    {".g_idx", ".qweight", "gptq or awq"},
    {".weight_packed", ".weight_scale", "compressed-tensors"},
    {".weight_scale", ".weight_packed", "compressed-tensors"},
    {".weight_zero_point", ".weight_scale", "compressed-tensors"},
    {".weight", ".SCB", "bitsandbytes"},
    {".weight", ".weight.absmax", "bitsandbytes"},
    {".weight.absmax", ".weight", "bitsandbytes"},
    {".weight", ".weight_scale", "fp8, int8 or fp4"},
    {".weight_scale", ".weight", "fp8, int8 or fp4"},
    {".weight", ".scale", "fp8, int8 or fp4"},
    {".scale", ".weight", "fp8, int8 or fp4"},
    {"", "_scale_inv", "fp8"},
    {"_blocks", "_scales", "mxfp4"},
};

/// Returns whether values of this type are plain numbers in every scheme.
bool is_plain_float(Dtype dtype) noexcept {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

/// Values of quant_method whose tensors no scheme here may claim, although some look alike.
constexpr std::string_view kRefusedMethods[] = {
    "aqlm", "auto-round", "bitnet", "eetq",  "fouroversix", "fp_quant", "higgs",
    "hqq",  "metal",      "quanto", "quark", "sinq",        "spqr",     "vptq",
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

std::string refusal(std::string_view scheme) {
  return "scheme \"" + clipped(scheme) + "\" is not decoded";
}

}  // namespace

bool is_refused(std::string_view method) noexcept {
  return std::ranges::find(kRefusedMethods, method) != std::end(kRefusedMethods);
}

std::string refusal_by_rule(const SourceTensors& tensors, const SourceTensor& tensor,
                            std::string_view method) {
  if (is_plain_float(tensor.info->dtype)) return {};
  if (!method.empty()) return refusal(method);
  const std::string_view name = tensor.info->name;
  for (const SchemeRule& rule : kRules) {
    if (!name.ends_with(rule.end)) continue;
    std::string beside(name.substr(0, name.size() - rule.end.size()));
    beside += rule.beside;
    if (tensors.find(beside) != nullptr) return refusal(rule.scheme);
  }
  return {};
}

void check_method(const QuantConfig& quant, const WeightInfo& info) {
  const auto* const method = std::ranges::find(kMethods, quant.method, &Method::name);
  if (method == std::end(kMethods)) return;
  if (std::ranges::find(method->schemes, info.scheme) != method->schemes.end()) return;
  fail(Errc::quant_mismatch, quant.path, info.source,
       "quant_method is `" + quant.method + "`, but its tensors are those of " +
           std::string(info.scheme));
}

}  // namespace safetensors::weights

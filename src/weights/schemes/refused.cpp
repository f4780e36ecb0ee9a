#include "weights/schemes/refused.hpp"

#include "base/text.hpp"

namespace safetensors::weights {
namespace {

/// A tensor whose name ends in `end` belongs to the scheme if there is another tensor with `beside`
/// instead of `end`. Rules are tried in order.
struct SchemeRule {
  std::string_view end;
  std::string_view beside;
  std::string_view scheme;
};
// The endings are those of the libraries' own checkpoints: transformers (MXFP4), AutoGPTQ and
// AutoAWQ, compressed-tensors, bitsandbytes, and the FP8 checkpoints of DeepSeek and others.
constexpr SchemeRule kRules[] = {
    {"_blocks", "_scales", "mxfp4"},  // gpt-oss by transformers
    {"_scales", "_blocks", "mxfp4"},
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
    {".weight", ".qscale_weight", "fp8"},
    {"", "_scale_inv", "fp8"},
};

/// Returns whether values of this type are plain numbers in every scheme.
bool is_plain_float(Dtype dtype) noexcept {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

std::string refusal(std::string_view scheme) {
  return "weights quantised by " + clipped(scheme) + " are not decoded";
}

}  // namespace

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

}  // namespace safetensors::weights

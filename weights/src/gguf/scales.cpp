#include "gguf/scales.hpp"

#include <optional>
#include <utility>

#include "base/text.hpp"
#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

constexpr std::string_view kScale = ".scale";
constexpr std::string_view kInputScale = ".input_scale";

/// Returns the tensor with `ending` instead of the end of a name, or nullptr.
const GgufSource* find_beside(const GgufSet& set, std::string_view name, std::string_view end,
                              std::string_view ending) {
  return set.find(std::string(name.substr(0, name.size() - end.size())).append(ending));
}

/// Returns whether this is a parameter of Gemma 4's checkpoints: `router.scale`, a vector, and
/// `router.per_expert_scale`, which GGUF names as the scale of the experts' last matrix.
bool is_parameter(const GgufSet& set, std::string_view name) {
  constexpr std::string_view kRouter = ".ffn_gate_inp.scale";
  constexpr std::string_view kExperts = ".ffn_down_exps.scale";
  if (name.ends_with(kRouter)) return true;
  return name.ends_with(kExperts) && find_beside(set, name, kExperts, kRouter) != nullptr;
}

/// Returns why this is no scale of the weight; empty if it is one.
std::string mismatch(const GgufTensor& scale, const GgufTensor& weight) {
  const auto shape = scale.shape();
  const bool is_one = shape.empty() || (shape.size() == 1 && shape.front() == 1);
  const bool is_stacked = shape.size() == 1 && weight.rank == 3 && shape[0] == weight.dims[0];
  if (scale.type == ggml::kF32 && (is_one || is_stacked)) return {};
  return "`" + clipped(scale.name) + "` is " + std::string(find_ggml_type(scale.type)->name) + " " +
         safetensors::shown(shape) + ", and the scale of a weight is F32 [1]" +
         (weight.rank == 3 ? " or [" + std::to_string(weight.dims[0]) + "]" : std::string()) +
         ". Decoding without it would give wrong values. get_tensor() reads both as stored";
}

}  // namespace

std::vector<GgufScale> take_scales(const GgufSet& set, std::span<Mapped> mapped) {
  const std::span<const GgufSource> all = set.tensors();
  std::vector<GgufScale> scales(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string_view name = all[i].tensor->name;
    if (!name.ends_with(kScale) || is_parameter(set, name)) continue;
    const GgufSource* const weight = find_beside(set, name, kScale, ".weight");
    if (weight == nullptr) continue;
    GgufScale& scale = scales[static_cast<std::size_t>(weight - all.data())];
    scale.refusal = mismatch(*all[i].tensor, *weight->tensor);
    if (!scale.refusal.empty()) continue;
    scale.source = &all[i];
    mapped[i] = {Mapped::Kind::ignored, {}};
  }
  return scales;
}

bool is_input_scale(const GgufSet& set, std::string_view name) {
  return name.ends_with(kInputScale) && find_beside(set, name, kInputScale, ".weight") != nullptr;
}

std::vector<float> scale_values(const GgufScale& scale, const Interrupt& interrupt) {
  const StoredBytes stored = scale.source->bytes(interrupt);
  std::vector<float> values(stored.bytes.size() / sizeof(float));
  dequantize_blocks(ggml::kF32, stored.bytes.data(), values.size(), Output::f32,
                    reinterpret_cast<std::byte*>(values.data()), interrupt);
  return values;
}

}  // namespace safetensors::weights

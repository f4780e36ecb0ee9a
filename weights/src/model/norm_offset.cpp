#include "model/norm_offset.hpp"

#include <string_view>

#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

/// Returns the first tensor whose name in the file contains `text`, or nullptr.
const WeightInfo* find_source(const Model& model, std::string_view text) {
  for (const std::vector<WeightInfo>* list : {&model.tensors, &model.others}) {
    for (const WeightInfo& info : *list) {
      if (info.source.find(text) != std::string_view::npos) return &info;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<double> find_norm_offset(const Model& model) {
  const auto known = find_hf_model_type(model.config.architecture.value_or(""));
  if (!known) return std::nullopt;
  switch (known->norm) {
    case NormRule::unknown:
      return std::nullopt;
    case NormRule::zero:
      return 0.0;
    case NormRule::one:
      return 1.0;
    case NormRule::one_in_transformers: {
      // When mlx-lm converts a checkpoint it adds 1 to the norms, and moves the axis of length 1 of
      // the convolution to the end. So the last axis shows which of the two stored the model.
      const WeightInfo* conv = find_source(model, ".conv1d.weight");
      if (conv == nullptr || conv->shape.empty()) return std::nullopt;
      return conv->shape.back() == 1 ? 0.0 : 1.0;
    }
    case NormRule::one_in_step_names:
      // mlx-lm renames the experts from `moe` to `switch_mlp`.
      if (find_source(model, ".switch_mlp.") != nullptr) return 0.0;
      if (find_source(model, ".moe.") != nullptr) return 1.0;
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> norm_offset_of(const WeightInfo& info, bool is_mapped,
                                     const std::optional<double>& of_model) {
  if (!of_model || *of_model == 0.0) return of_model;
  if (info.source.ends_with("linear_attn.norm.weight")) return 0.0;
  if (!is_mapped || is_of_tower(info.name)) return std::nullopt;
  return info.name.ends_with("norm.weight") ? of_model : 0.0;
}

}  // namespace safetensors::weights

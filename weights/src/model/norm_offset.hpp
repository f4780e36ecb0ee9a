// The offset of norm weights: what a model adds to them before it multiplies by them.
#pragma once

#include <optional>

#include "model/backend.hpp"

namespace safetensors::weights {

/// Returns the offset of a Hugging Face or MLX model by its model type; nothing if it is not known.
/// Where the two store norm weights differently, names and shapes of tensors decide.
[[nodiscard]] std::optional<double> find_norm_offset(const Model& model);

/// Returns the offset of one tensor. `of_model` is the model's.
[[nodiscard]] std::optional<double> norm_offset_of(const WeightInfo& info, bool is_mapped,
                                                   const std::optional<double>& of_model);

}  // namespace safetensors::weights

// What a checkpoint's model adds to its norm weights.
#pragma once

#include <optional>

#include "weights/backend.hpp"

namespace safetensors::weights {

/// Returns the offset of a Hugging Face or MLX model's norm weights by its model type, and where
/// the two store them differently, by names and shapes of its tensors. Nothing when it is not
/// known.
[[nodiscard]] std::optional<double> find_norm_offset(const Model& model);

/// Returns the offset of one tensor, given the model's.
[[nodiscard]] std::optional<double> norm_offset_of(const WeightInfo& info, bool is_mapped,
                                                   const std::optional<double>& of_model);

}  // namespace safetensors::weights

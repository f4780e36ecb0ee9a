// Finds the scales that GGUF files store beside weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/set.hpp"
#include "names/names.hpp"

namespace safetensors::weights {

/// The scale of a weight: `M.scale` beside `M.weight`. llama.cpp multiplies the product of a weight
/// of any type by it: F32 [1], or one value for each matrix of a stack. Its converter writes the
/// global scales of NVFP4 checkpoints so.
struct GgufScale {
  const GgufSource* source = nullptr;  ///< nullptr if the weight has none
  std::string refusal;  ///< why the weight cannot be decoded; empty if the scale fits it
};

/// Returns the scale of each tensor of the set, and updates `mapped`: a scale that belongs to a
/// weight is ignored. The scale of Gemma 4's router, and that of its experts' outputs, are
/// parameters of the checkpoint and keep their names.
[[nodiscard]] std::vector<GgufScale> take_scales(const GgufSet& set, std::span<Mapped> mapped);

/// Returns whether this is the scale of the activations of a weight of the set: `M.input_scale`
/// beside `M.weight`.
[[nodiscard]] bool is_input_scale(const GgufSet& set, std::string_view name);

/// Returns the numbers of a scale as stored. Requires: the scale fits its weight.
[[nodiscard]] std::vector<float> scale_values(const GgufScale& scale, const Interrupt& interrupt);

}  // namespace safetensors::weights

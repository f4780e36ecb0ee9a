// Conv1D of transformers: the linear layer of GPT-2 and its relatives, whose weight is
// [inputs, outputs]. bitsandbytes, GPTQ and AWQ store [outputs, inputs], as of any linear layer:
// the transpose of what a plain checkpoint has.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "safetensors/weights/json.hpp"
#include "schemes/checkpoint.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {

/// Returns whether a model has such layers, by the model types in its config.json; nothing if there
/// is no configuration, or one that states no type.
[[nodiscard]] std::optional<bool> has_conv1d(const Json* config);

/// Claims the weight [outputs, inputs] of a linear layer for the name, as Checkpoint::claim() does:
/// transposed if the layer is a Conv1D. Refuses `codes` if nothing tells whether it is one.
void claim_linear(const SourceTensor& by, const SourceTensor& codes, std::string name,
                  std::unique_ptr<SchemeWeight> weight, Checkpoint& checkpoint);

}  // namespace safetensors::weights

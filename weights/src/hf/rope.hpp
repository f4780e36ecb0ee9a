// Reads the parameters of rotary position embedding from config.json.
#pragma once

#include "config/json_section.hpp"
#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

/// Fills in the fields of `model` about rotary embedding.
///
/// Requires: architecture and head_dim are filled in.
/// Throws: config, as read_hf_config().
void read_rope(const Section& section, ModelConfig& model);

}  // namespace safetensors::weights

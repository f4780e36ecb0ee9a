// Rotary position embedding out of config.json.
#pragma once

#include "safetensors/weights/config.hpp"
#include "weights/json_section.hpp"

namespace safetensors::weights {

/// Reads all fields of the table about rotary embedding.
/// Requires: architecture, head_dim and max_seq_len are read.
/// Throws Error config, as read_hf_config().
void read_rope(const Section& section, ModelConfig& model);

}  // namespace safetensors::weights

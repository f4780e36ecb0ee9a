// What holds for a configuration, whichever file it came from.
#pragma once

#include <cstdint>

#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

/// Integers of a configuration are below this.
inline constexpr std::int64_t kIntegerEnd = std::int64_t{1} << 31;

/// What is not said about heads: as many for keys and values, and a row shared evenly.
inline void fill_heads(ModelConfig& model) noexcept {
  if (!model.n_kv_heads) model.n_kv_heads = model.n_heads;
  if (!model.head_dim && model.dim && model.n_heads && *model.n_heads != 0) {
    model.head_dim = *model.dim / *model.n_heads;
  }
}

}  // namespace safetensors::weights

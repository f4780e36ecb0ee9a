// Plain tensors, and MLX packs, of safetensors files.
#pragma once

#include <memory>
#include <string>

#include "hf/packs.hpp"
#include "tensors/stored_weight.hpp"

namespace safetensors::weights {

/// Returns a plain tensor. If `refusal` is not nullptr, the tensor holds codes of a scheme, and
/// decoding fails with that text.
///
/// Lifetime: `refusal` outlives the weight.
[[nodiscard]] std::unique_ptr<StoredWeight> plain_weight(const SourceTensor& tensor,
                                                         const std::string* refusal);

/// Returns an MLX pack. `remark` says why its parameters are not known, or is nullptr.
///
/// Lifetime: `remark` outlives the weight.
[[nodiscard]] std::unique_ptr<StoredWeight> pack_weight(const Pack& pack,
                                                        const std::string* remark);

}  // namespace safetensors::weights

// Plain tensors, and MLX packs, of safetensors files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "weights/packs.hpp"
#include "weights/stored_weight.hpp"

namespace safetensors::weights {

/// Returns a plain tensor. If `refusal` is not nullptr, the tensor holds codes of a scheme, and
/// decoding fails with that text.
///
/// Lifetime: `refusal` outlives the weight.
[[nodiscard]] std::unique_ptr<StoredWeight> plain_weight(const SourceTensor& tensor,
                                                         const std::string* refusal);

/// Rounds values of a tensor to F16. `stored` are bytes of the tensor.
///
/// Throws: f16_overflow, unless the options allow it.
void write_f16(const SourceTensor& tensor, std::span<const std::byte> stored,
               std::span<std::byte> to, const ModelOptions& options, const Interrupt& interrupt);

/// Returns an MLX pack. `remark` says why its parameters are not known, or is nullptr.
///
/// Lifetime: `remark` outlives the weight.
[[nodiscard]] std::unique_ptr<StoredWeight> pack_weight(const Pack& pack,
                                                        const std::string* remark);

}  // namespace safetensors::weights

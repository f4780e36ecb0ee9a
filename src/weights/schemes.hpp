// Recognises quantisation schemes by the names of tensors.
#pragma once

#include <string_view>

#include "weights/source_tensors.hpp"

namespace safetensors::weights {

/// Returns whether values of this type are plain numbers in every scheme.
[[nodiscard]] bool is_plain_float(Dtype dtype) noexcept;

/// Returns the scheme that a tensor of codes belongs to, by the names of related tensors; empty if
/// there is none. Does not recognise MLX's packs.
[[nodiscard]] std::string_view scheme_of(const SourceTensors& tensors, const SourceTensor& tensor);

}  // namespace safetensors::weights

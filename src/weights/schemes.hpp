// Quantisation schemes whose tensors are known by the tensors beside them.
#pragma once

#include <string_view>

#include "weights/source_tensors.hpp"

namespace safetensors::weights {

/// Whether the type holds numbers that stand for themselves, whatever quantised the model.
[[nodiscard]] bool is_plain_float(Dtype dtype) noexcept;

/// The scheme that owns a tensor of codes, by the names of the tensors beside it; empty when there
/// is none. MLX's packs are not asked about here.
[[nodiscard]] std::string_view scheme_of(const SourceTensors& tensors, const SourceTensor& tensor);

}  // namespace safetensors::weights

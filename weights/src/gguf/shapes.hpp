// Finds the shapes that GGUF files of image models state beside those of their tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/header.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// Returns a tensor's shape, slowest axis first: that of the key `comfy.gguf.orig_shape.NAME`, else
/// the stored one. ComfyUI-GGUF stores a tensor whose rows do not divide into blocks with rows of
/// 256 values, in the same order, and its shape under this key. A shape with another number of
/// values, or more axes than tensors have, is not used, and its key is added to `unused`.
[[nodiscard]] std::vector<std::int64_t> shape_of(const GgufTensor& tensor,
                                                 const ModelMetadata& metadata,
                                                 std::vector<std::string>& unused);

}  // namespace safetensors::weights

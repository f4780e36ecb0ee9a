// Reads a model's configuration from the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <filesystem>

#include "safetensors/weights/config.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// Reads the configuration. `embedding_rows` is the number of rows of the embedding, the size of
/// the vocabulary if no key states it. `has_output` says whether there is an output tensor.
///
/// Throws: config, with the key as subject, for a value of the wrong type or outside its range.
[[nodiscard]] ModelConfig read_gguf_config(const ModelMetadata& metadata,
                                           std::int64_t embedding_rows, bool has_output,
                                           const std::filesystem::path& path);

}  // namespace safetensors::weights

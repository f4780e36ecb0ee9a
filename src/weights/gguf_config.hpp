// A model's configuration out of a GGUF file's metadata.
#pragma once

#include <cstdint>
#include <filesystem>

#include "safetensors/weights/config.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// Reads the table. `embedding_rows` are those of the embedding, for a vocabulary whose size is not
/// said; `has_output` is whether there is a tensor for the output.
/// Throws Error config: a value of the wrong type or outside its range, with its key as subject.
[[nodiscard]] ModelConfig read_gguf_config(const ModelMetadata& metadata,
                                           std::int64_t embedding_rows, bool has_output,
                                           const std::filesystem::path& path);

}  // namespace safetensors::weights

// The backend for models in safetensors: directories of Hugging Face and MLX, and single files.
#pragma once

#include <filesystem>
#include <memory>

#include "model/backend.hpp"
#include "safetensors/model_files.hpp"

namespace safetensors::weights {

/// Opens a directory, or a single file with the config.json beside it if there is one.
[[nodiscard]] std::unique_ptr<Backend> open_safetensors(const std::filesystem::path& path,
                                                        const ModelOptions& options);
/// Returns which of the two formats it is. Reads headers only.
[[nodiscard]] Format safetensors_format(const std::filesystem::path& path,
                                        const ModelChoice& choice);

}  // namespace safetensors::weights

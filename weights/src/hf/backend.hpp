// The backend for models in safetensors: directories of Hugging Face and MLX, and single files.
#pragma once

#include <filesystem>
#include <memory>

#include "common/files.hpp"
#include "model/backend.hpp"

namespace safetensors::weights {

/// Opens a directory, or a single file with the config.json beside it if there is one.
[[nodiscard]] std::unique_ptr<Backend> open_safetensors(const Files& files,
                                                        const std::filesystem::path& path,
                                                        const ModelOptions& options);
/// Returns which of the two formats a local model is. Reads headers only.
[[nodiscard]] Format safetensors_format(const std::filesystem::path& path,
                                        const ModelChoice& choice);

}  // namespace safetensors::weights

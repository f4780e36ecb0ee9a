// Models in safetensors: Hugging Face's and MLX's directories, and files by themselves.
#pragma once

#include <filesystem>
#include <memory>

#include "weights/backend.hpp"

namespace safetensors::weights {

/// Opens a directory, or a single file with the config.json beside it, if there is one.
[[nodiscard]] std::unique_ptr<Backend> open_safetensors(const std::filesystem::path& path,
                                                        const ModelOptions& options);
/// Which of the two formats it is. Reads as little as open does.
[[nodiscard]] Format safetensors_format(const std::filesystem::path& path);

}  // namespace safetensors::weights

// The backend for GGUF models.
#pragma once

#include <filesystem>
#include <memory>

#include "model/backend.hpp"

namespace safetensors::weights {

/// Opens a file, or a split model by any of its parts.
[[nodiscard]] std::unique_ptr<Backend> open_gguf(const std::filesystem::path& path,
                                                 const ModelOptions& options);

}  // namespace safetensors::weights

// The backend for GGUF models.
#pragma once

#include <filesystem>
#include <memory>

#include "common/files.hpp"
#include "model/backend.hpp"

namespace safetensors::weights {

/// Opens a file, or a split model by any of its parts.
[[nodiscard]] std::unique_ptr<Backend> open_gguf(const Files& files,
                                                 const std::filesystem::path& path,
                                                 const ModelOptions& options);

}  // namespace safetensors::weights

// Models in GGUF.
#pragma once

#include <filesystem>
#include <memory>

#include "weights/backend.hpp"

namespace safetensors::weights {

/// Opens a file, or all of a split model when given any part of it.
[[nodiscard]] std::unique_ptr<Backend> open_gguf(const std::filesystem::path& path,
                                                 const ModelOptions& options);

}  // namespace safetensors::weights

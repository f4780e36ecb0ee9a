// The formats a model comes in, and who opens each.
#pragma once

#include <filesystem>
#include <memory>

#include "weights/backend.hpp"

namespace safetensors::weights {

/// Opens whatever is there. Throws Error: io, bad_magic, unsupported (several models), and what the
/// backends throw.
[[nodiscard]] std::unique_ptr<Backend> open_backend(const std::filesystem::path& path,
                                                    const ModelOptions& options);
/// What is there.
[[nodiscard]] Format format_of(const std::filesystem::path& path);

}  // namespace safetensors::weights

// Recognises the format of a model and opens its backend.
#pragma once

#include <filesystem>
#include <memory>

#include "common/files.hpp"
#include "model/backend.hpp"

namespace safetensors::weights {

/// Opens the model at `path`.
///
/// Throws: io; bad_magic; unsupported if a directory has several models; and what the backends
/// throw.
[[nodiscard]] std::unique_ptr<Backend> open_backend(const Files& files,
                                                    const std::filesystem::path& path,
                                                    const ModelOptions& options);
/// Returns the format of the local model at `path`: gguf also of a folder with several GGUF models
/// and no other. Throws as open_backend().
[[nodiscard]] Format format_of(const std::filesystem::path& path);

}  // namespace safetensors::weights

// Names of temporary files.
#pragma once

#include <filesystem>

namespace safetensors::io {

/// Returns the directory that contains `target`.
[[nodiscard]] std::filesystem::path folder_of(const std::filesystem::path& target);

/// Returns a random name in the directory of `target`. It begins with a dot, and contains the name
/// of `target`, so that a file left behind by a crash can be recognised.
[[nodiscard]] std::filesystem::path temporary_name(const std::filesystem::path& target);

}  // namespace safetensors::io

// Replaced files that cannot be removed while somebody has them mapped.
#pragma once

#include <filesystem>

namespace safetensors::io {

/// Removes the file, or remembers it to try again. Thread safe.
void remove_or_remember(const std::filesystem::path& path);

/// Tries again. Thread safe; costs nothing when no file is remembered.
void remove_leftovers() noexcept;

}  // namespace safetensors::io

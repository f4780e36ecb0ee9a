// Replaced files that cannot be deleted while a process has them mapped.
#pragma once

#include <filesystem>

namespace safetensors::io {

/// Deletes the file, or remembers it to be deleted by delete_pending().
/// Thread safety: may be called from many threads at once.
void delete_or_defer(const std::filesystem::path& path);

/// Tries to delete the remembered files. Costs nothing if there are none.
/// Thread safety: may be called from many threads at once.
void delete_pending() noexcept;

}  // namespace safetensors::io

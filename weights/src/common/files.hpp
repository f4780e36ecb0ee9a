// Where the files of a model come from.
#pragma once

#include <filesystem>
#include <vector>

#include "safetensors/file_bytes.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors::weights {

/// Local files, or those of a ModelSource, by their paths.
///
/// Requires: the paths are those of ModelSource::path(), and the folder is its folder.
/// Thread safety: several threads may call const members at once.
class Files {
 public:
  Files() = default;  ///< local ones
  /// Lifetime: `source` outlives this.
  explicit Files(const ModelSource& source) noexcept : source_(&source) {}

  /// Throws: io.
  [[nodiscard]] bool is_folder(const std::filesystem::path& path) const;
  /// Returns whether there is a regular file.
  [[nodiscard]] bool has(const std::filesystem::path& path) const;
  /// Returns the paths of the regular files of a folder. Throws: io.
  [[nodiscard]] std::vector<std::filesystem::path> list(const std::filesystem::path& folder) const;

  // These throw the core's errors, and what the source throws.

  /// Finds safetensors files by find_model_files().
  [[nodiscard]] FoundModel find_model(const std::filesystem::path& path,
                                      const ModelChoice& choice) const;
  /// Opens any file, and maps it if `map` and it is local.
  [[nodiscard]] FileBytes open(const std::filesystem::path& path, bool map) const;
  /// Opens a safetensors file likewise.
  [[nodiscard]] SafeOpen open_safetensors(const std::filesystem::path& path, bool map) const;

 private:
  const ModelSource* source_ = nullptr;
};

}  // namespace safetensors::weights

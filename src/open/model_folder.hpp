// The names in a local folder, where a save may be under way.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "safetensors/model_files.hpp"

namespace safetensors {

/// The names in a folder.
struct FolderNames {
  std::vector<std::string> all;
  std::vector<std::string> files;  ///< those of files and links
};

/// Throws: Error kIo.
[[nodiscard]] FolderNames names_in(const std::filesystem::path& folder);

/// Looks for a save of a model whose files are taking their places. An index takes its place after
/// the files that it names, so what it leads to is whole. Without one, and where the old single
/// file still lies beside a new index, it may not be.
///
/// names: all in the folder.
/// model: what was found; nullptr if this was an error.
/// Returns false if the names in the folder have changed: look again.
/// Throws: Error kIncompleteModel if there is such a save; kIo.
[[nodiscard]] bool check_saves(const std::filesystem::path& folder,
                               const std::vector<std::string>& names, const ModelChoice& choice,
                               const ModelFiles* model);

}  // namespace safetensors

// Finding a model, some of whose files are opened meanwhile.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "open/early_opens.hpp"
#include "safetensors/model_files.hpp"

namespace safetensors {

/// Finds a model, as the public function of this name does.
///
/// early: receives the files of a large index, by the paths of FoundModel::path(), as soon as their
///   names are read. nullptr: nothing does.
/// Throws: what the public function throws.
[[nodiscard]] FoundModel find_model_files(const std::filesystem::path& path,
                                          const ModelChoice& choice,
                                          const std::optional<std::vector<std::string>>& names,
                                          EarlyOpens* early);

}  // namespace safetensors

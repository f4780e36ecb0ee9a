// Finds the safetensors files of a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/model_files.hpp"
#include "safetensors/shard_index.hpp"

namespace safetensors::weights {

/// The files of a model.
struct ShardSet {
  std::filesystem::path folder;  ///< of the model, and of its configuration
  std::vector<std::filesystem::path> files;
  std::filesystem::path index;        ///< empty if there is none
  std::optional<ShardIndex> content;  ///< of the index, whose files are `files`
  std::vector<std::string> warnings;  ///< about files of the folder that are left out
};

/// Finds the files of a model: of a folder, by the rule of find_model_files(); those that an index
/// names; or a single file.
///
/// Throws: missing_shard if there are none, or one is absent; unsupported if more than one set of
/// files may be the model, or ranks saved parts of its tensors; what reading an index throws.
[[nodiscard]] ShardSet find_shards(const std::filesystem::path& path, const ModelChoice& choice);

}  // namespace safetensors::weights

// Finds the safetensors files of a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/model_files.hpp"

namespace safetensors::weights {

/// The files of a model.
struct ShardSet {
  std::filesystem::path folder;  ///< of the model, and of its configuration
  std::vector<std::filesystem::path> files;
  std::filesystem::path index;  ///< empty if there is none
  /// From the index: each tensor and the number of its file, sorted by tensor.
  std::vector<std::pair<std::string, std::size_t>> places;
  std::vector<std::string> warnings;  ///< about files of the folder that are left out
};

/// Finds the files of a model: of a folder, by the rule of find_model_files(); those that an index
/// names; or a single file.
///
/// Throws: missing_shard if there are none, or one is absent; unsupported if more than one set of
/// files may be the model, or ranks saved parts of its tensors; what reading an index throws.
[[nodiscard]] ShardSet find_shards(const std::filesystem::path& path, const ModelChoice& choice);

}  // namespace safetensors::weights

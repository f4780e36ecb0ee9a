// Finds the safetensors files of a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/weights/limits.hpp"
#include "weights/json.hpp"

namespace safetensors::weights {

/// The files of a model.
struct ShardSet {
  std::vector<std::filesystem::path> files;
  std::filesystem::path index;  ///< empty if there is none
  /// From the index: each tensor and the number of its file, sorted by tensor.
  std::vector<std::pair<std::string, std::size_t>> places;
};

/// The content of an index. Unlike safetensors::ShardIndex, whose files may be below the directory,
/// it allows plain file names only, and reports faults by the codes of this layer.
struct ShardIndex {
  std::vector<std::string> files;  ///< distinct names without a directory
  /// Each tensor and the number of its file, sorted by tensor.
  std::vector<std::pair<std::string, std::size_t>> places;
};

/// Reads an index. `path` names it in errors.
///
/// Throws: json; missing_shard if it names no file; bad_name for a name that is not a plain file
/// name.
[[nodiscard]] ShardIndex parse_index(const Json& json, const std::filesystem::path& path);

/// Finds the files of a directory. It looks for
///   1. the files that model.safetensors.index.json names;
///   2. model.safetensors;
///   3. a complete set of model-00001-of-0000N.safetensors;
///   4. a complete set from weights.00.safetensors on, the names of older versions of mlx;
///   5. the only *.safetensors.
/// Names in an index are those of files in the directory itself. They may be links to other places,
/// as in a download cache.
///
/// Throws: missing_shard; json; limit; duplicate; bad_name; unsupported if there are several
/// candidates.
[[nodiscard]] ShardSet find_shards(const std::filesystem::path& directory, const Limits& limits);

}  // namespace safetensors::weights

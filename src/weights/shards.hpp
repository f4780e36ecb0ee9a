// Which files of a directory make up a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/weights/limits.hpp"
#include "weights/json.hpp"

namespace safetensors::weights {

/// The files of a model in safetensors.
struct ShardSet {
  std::vector<std::filesystem::path> files;
  std::filesystem::path index;  ///< empty without one
  /// Of the index: tensor and the file it should be in, sorted by tensor.
  std::vector<std::pair<std::string, std::size_t>> places;
};

/// What an index says, before any file is looked for.
struct ShardIndex {
  std::vector<std::string> files;  ///< names without a folder, each once
  /// Tensor and the file it should be in, sorted by tensor.
  std::vector<std::pair<std::string, std::size_t>> places;
};

/// Reads an index. Pure. `path` names it in errors.
/// Throws Error: json, missing_shard (it names no file), bad_name (not the name of a file beside
/// it).
[[nodiscard]] ShardIndex parse_index(const Json& json, const std::filesystem::path& path);

/// Finds them, in this order: what model.safetensors.index.json names; model.safetensors; a
/// complete set of model-00001-of-0000N.safetensors; of weights.00.safetensors and on, as older mlx
/// wrote; the only *.safetensors. Names in an index are those of files in the directory itself
/// (links among them may lead elsewhere, as in a download cache).
/// Throws Error: missing_shard, json, limit, duplicate, bad_name, unsupported (several candidates).
[[nodiscard]] ShardSet find_shards(const std::filesystem::path& directory, const Limits& limits);

}  // namespace safetensors::weights

// Finds the safetensors files of a model.
#pragma once

#include <filesystem>

#include "common/files.hpp"

namespace safetensors::weights {

/// Finds the files of a model by find_model_files(). The remarks are also about files of the folder
/// that are no part of the model.
///
/// Throws: missing_shard if there are none; unsupported if more than one set of
/// files may be the model, or ranks saved parts of its tensors; what reading an index throws.
[[nodiscard]] FoundModel find_shards(const Files& files, const std::filesystem::path& path,
                                     const ModelChoice& choice);

}  // namespace safetensors::weights

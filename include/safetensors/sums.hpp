// The sums of a model: the digests of its tensors, in a file beside it. docs/verify.md describes
// them.
#pragma once

#include <filesystem>

#include "safetensors/export.hpp"

namespace safetensors {

/// Returns the path of the sums of a model: STEM.sums.json for STEM.safetensors or
/// STEM.safetensors.index.json; for any other file, its path and ".sums.json".
[[nodiscard]] SAFETENSORS_API std::filesystem::path sums_path(const std::filesystem::path& file);

/// Removes the sums of a file that is about to change, so that they cannot accuse its new content.
/// They are STEM.sums.json for STEM.safetensors; for a shard, STEM-00001-of-00002.safetensors, the
/// sums of the model as well. Does nothing for a file with another name. The sinks of paths do
/// this before a file gets its name.
///
/// Throws: Error kIo if there are sums that cannot be removed.
SAFETENSORS_API void remove_sums(const std::filesystem::path& file);

}  // namespace safetensors

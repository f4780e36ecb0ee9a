// Reading an index from a file of the system.
#pragma once

#include <filesystem>

#include "format/shard_index.hpp"

namespace safetensors {

/// Reads an index, as ShardIndex::read() does. Calls `seen` if the index is so large that it helps
/// to open its files meanwhile.
///
/// Throws: what ShardIndex::read() and `seen` throw.
[[nodiscard]] ShardIndex read_index(const std::filesystem::path& path, const FileSeen& seen);

}  // namespace safetensors

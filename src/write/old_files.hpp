// The files of a model that a save replaces.
#pragma once

#include <string_view>

#include "safetensors/detail/folder.hpp"
#include "write/switch_record.hpp"

namespace safetensors {

/// Returns the files of a model: the index, the single file, and the shards that the index names.
///
/// Throws: Error kIo, kNotRegularFile; what ShardIndex::parse() throws.
[[nodiscard]] FileIdentities old_files(const detail::Folder& folder, std::string_view name);

}  // namespace safetensors

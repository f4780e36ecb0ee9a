// The recovery of saves of models. For this project's own bindings: it may change at any time.
#pragma once

#if !defined(_WIN32)

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/detail/folder.hpp"
#include "safetensors/export.hpp"
#include "safetensors/model_writer.hpp"

namespace safetensors::detail {

/// What a recovery of saves did.
struct RecoveredSaves {
  std::vector<Recovery> outcomes;         ///< of each save
  std::vector<OwnName::Text> left_alone;  ///< the names of what is no save of this user
};

/// Recovers the saves of all models in a folder or, with `file`, of those models that may have a
/// file of this name.
///
/// Throws: as safetensors::recover().
[[nodiscard]] SAFETENSORS_API RecoveredSaves recover_saves(const Folder& folder,
                                                           std::string_view file = {});

/// Throws unless a file for which there was nothing to recover can be opened, or another file of
/// its model exists: Error kInvalidArgument, or what opening it throws if it is from the system.
SAFETENSORS_API void refuse_unrecovered(const Folder& folder, std::string_view file);

/// Returns the names of the files of a model in a folder: its index, its only file, and the shards
/// that the index names.
///
/// Throws: as ModelWriter.
[[nodiscard]] SAFETENSORS_API std::vector<std::string> old_names(const Folder& folder,
                                                                 std::string_view name);

}  // namespace safetensors::detail

#endif

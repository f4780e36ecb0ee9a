// The recovery of saves of models, and of changes in place. For this project's own bindings: it may
// change at any time.
#pragma once

#if !defined(_WIN32)

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/export.hpp"
#include "safetensors/model_writer.hpp"

namespace safetensors::detail {

/// What a recovery did in a folder.
struct Recovered {
  Recovery outcome = Recovery::kClean;
  std::vector<OwnName::Text> left_alone{};  ///< the names of what is none of this user
};

/// Recovers all that interrupted saves and changes in place have left in a folder or, with `file`,
/// what they have left of this file and of those models that may have a file of this name.
///
/// Throws: as safetensors::recover(); what `before_open` throws, which is called before a file is
///   changed in place.
[[nodiscard]] SAFETENSORS_API Recovered recover_in(const Folder& folder, std::string_view file = {},
                                                   const BeforeOpen& before_open = {});

/// Recovers the saves of models only.
[[nodiscard]] Recovered recover_saves(const Folder& folder, std::string_view file);

/// Recovers the changes in place of all files or, if any are named, of these files and indexes.
[[nodiscard]] SAFETENSORS_API Recovered recover_changes(const Folder& folder,
                                                        std::span<const std::string> only = {},
                                                        const BeforeOpen& before_open = {});

/// Throws unless a file for which there was nothing to recover can be opened, or another file of
/// its model exists: Error kInvalidArgument, or what opening it throws if it is from the system.
SAFETENSORS_API void refuse_unrecovered(const Folder& folder, std::string_view file);

/// Returns the names of the files of a model in a folder: its index, its only file, and the shards
/// that the index names.
///
/// Throws: as ModelWriter.
[[nodiscard]] SAFETENSORS_API std::vector<std::string> old_names(const Folder& folder,
                                                                 std::string_view name);

/// Throws if a folder has a file of another model, with which one that has the files `ours` would
/// be mixed up: see file_of_other_model(). Throws: Error kSeveralModels, kIo.
SAFETENSORS_API void refuse_other_models(const Folder& folder, std::span<const std::string> ours);

}  // namespace safetensors::detail

#endif

// What a local folder has besides a model. For this project's own bindings: it may change at any
// time.
#pragma once

#include <filesystem>
#include <string>

#include "safetensors/export.hpp"
#include "safetensors/file_id.hpp"

namespace safetensors::detail {

/// Throws: Error kIncompleteModel if files of a model are just taking their places in a folder, or
///   a save was interrupted while they did; kIo if the folder cannot be read.
SAFETENSORS_API void refuse_interrupted(const std::filesystem::path& folder);

/// Throws: Error kFileChanged if an index is not the file that was read any more.
SAFETENSORS_API void check_index(const std::filesystem::path& index, const FileId& read);

/// Returns whether a folder has files of a model, other than a LoRA adapter: if not, its model may
/// be one of GGUF or PyTorch files. Throws: Error kIo.
[[nodiscard]] SAFETENSORS_API bool has_model_files(const std::filesystem::path& folder);

/// Returns a sentence about the subfolders that have models, as those of a pipeline of diffusers;
/// empty if none has. Throws: Error kIo.
[[nodiscard]] SAFETENSORS_API std::string models_below(const std::filesystem::path& folder);

}  // namespace safetensors::detail

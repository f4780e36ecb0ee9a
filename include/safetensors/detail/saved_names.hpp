// The names of files that belong to a model that was saved. For this project's own bindings: it may
// change at any time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/export.hpp"

namespace safetensors::detail {

/// What the names of files with tensors end with.
inline constexpr std::string_view kModelFileSuffix = ".safetensors";
/// What the names of patches end with.
inline constexpr std::string_view kPatchFileSuffix = ".safetensors-patch";
/// What the names of indexes end with, after the suffix of the files.
inline constexpr std::string_view kIndexSuffix = ".index.json";

/// The most bytes of a model's name: file names may have 255, of which the end of a shard has 27.
inline constexpr std::size_t kMaxModelName = 228;

/// Throws: Error kInvalidArgument unless files may be named after this model name of at most `most`
///   bytes.
SAFETENSORS_API void check_model_name(std::string_view name, std::size_t most = kMaxModelName);

/// Throws: Error kInvalidArgument if a folder that is to be made has the name of a file.
SAFETENSORS_API void check_new_folder(const std::filesystem::path& folder);

/// Returns whether a file name is that of a shard of a model that was saved with this name.
[[nodiscard]] SAFETENSORS_API bool is_shard_of(std::string_view name, std::string_view file);

/// Returns whether a file name is that of a shard, of the only file, or of the index of a model.
[[nodiscard]] SAFETENSORS_API bool is_file_of(std::string_view name, std::string_view file);

/// Returns the name of the model that has a file of this name: an index, a shard, or the only file.
[[nodiscard]] SAFETENSORS_API std::string_view model_of(std::string_view file);

/// Returns the name under which the files of a changed model are saved, from that of its index or,
/// without one, of its first file: theirs, also of a variant; "model" if it is no shard.
[[nodiscard]] SAFETENSORS_API std::string name_to_save(std::string_view file);

/// Returns the first, by its name, of the files in a folder that a reader may take for one of a
/// model and that is not in `ours`; an empty view if there is none. No reader takes hidden files,
/// such as a temporary file that a killed save has left, or patches.
[[nodiscard]] SAFETENSORS_API std::string_view file_of_other_model(
    std::span<const std::string> names, std::span<const std::string> ours);

/// Returns whether a file of this name is one that a conversion copies with a model: configuration,
/// tokenizer, licence. Not what describes files that are replaced.
[[nodiscard]] SAFETENSORS_API bool is_companion(std::string_view file);

/// Returns whether a file of this name says how the tensors of a folder are quantised. A conversion
/// that decodes them does not copy it.
[[nodiscard]] SAFETENSORS_API bool describes_quantised(std::string_view file);

}  // namespace safetensors::detail

// Names of temporary files.
#pragma once

#include <filesystem>
#include <string_view>

#include "safetensors/detail/folder.hpp"

namespace safetensors::io {

/// Returns the directory that contains `target`.
[[nodiscard]] std::filesystem::path folder_of(const std::filesystem::path& target);

/// The last part of such a name.
inline constexpr std::string_view kTemporaryKind = "tmp";

/// Returns a random name. It begins with a dot, and contains the beginning of the name of `target`,
/// so that a file left behind by a crash can be recognised.
[[nodiscard]] detail::OwnName temporary_name(const detail::OwnName& target);

}  // namespace safetensors::io

// Recognition of files of other formats.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/export.hpp"

namespace safetensors {

/// A well-known format that is not safetensors. Both texts live as long as the program.
struct FileKind {
  std::string_view name;         ///< a word for programs, such as "zip" or "git-lfs-pointer"
  std::string_view description;  ///< for texts: "a zip archive, as torch.save writes (.pt, .bin)"
};

/// Returns the format that `start`, a file's first bytes, belongs to; nothing if it is none of
/// those known. 64 bytes are enough.
///
/// Safe for untrusted input.
[[nodiscard]] SAFETENSORS_API std::optional<FileKind> foreign_file_kind(
    std::span<const std::byte> start);

/// Returns ". This is " and the description, to be added to the text of an error; empty if the
/// format is none of those known.
[[nodiscard]] SAFETENSORS_API std::string foreign_file_hint(std::span<const std::byte> start);

}  // namespace safetensors

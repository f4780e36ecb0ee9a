// The bytes of any file, for readers of other formats.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/export.hpp"
#include "safetensors/mapped_file.hpp"

namespace safetensors {

/// An open file. Both members stay with the same file, even if another file takes its path.
struct FileBytes {
  std::shared_ptr<const ByteSource> source;   ///< never null
  std::shared_ptr<const MappedFile> mapping;  ///< null if not requested, refused, or empty
};

/// Opens a regular file of any format, and maps it if `map`. Reads nothing.
///
/// Throws: Error kIo, kNotRegularFile, or kInvalidArgument (the path contains a NUL).
[[nodiscard]] SAFETENSORS_API FileBytes open_bytes(const std::filesystem::path& path,
                                                   bool map = true);

}  // namespace safetensors

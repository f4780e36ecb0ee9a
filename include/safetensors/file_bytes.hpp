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

/// An open file. Both members are of the same file, also when its path is given to another.
struct FileBytes {
  std::shared_ptr<const ByteSource> source;   ///< to read from; never null
  std::shared_ptr<const MappedFile> mapping;  ///< null: not asked for, refused, or of no bytes
};

/// Opens a regular file of any format, and maps it when asked to. Reads nothing.
/// Throws Error: kIo, kNotRegularFile, kInvalidArgument (a NUL in the path).
[[nodiscard]] SAFETENSORS_API FileBytes open_bytes(const std::filesystem::path& path,
                                                   bool map = true);

/// Whether the last of these mapped bytes is on a page that its file lost after it was mapped:
/// touching that would end the process. False also where the system cannot tell.
[[nodiscard]] SAFETENSORS_API bool is_cut_short(std::span<const std::byte> mapped) noexcept;

}  // namespace safetensors

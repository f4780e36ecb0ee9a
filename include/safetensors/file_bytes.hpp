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

/// Returns whether the file has been truncated below the last of these mapped bytes, by whole
/// pages: touching that page would end the process with SIGBUS. Returns false where the system
/// cannot say: on Linux before 5.14 and on other systems.
///
/// Call it before reading mapped bytes of a file that another process may truncate. It is no
/// guarantee: the file can be truncated between the call and the read.
[[nodiscard]] SAFETENSORS_API bool is_truncated(std::span<const std::byte> mapped) noexcept;

/// The old name of is_truncated(). Will be removed in the next version.
[[deprecated("use is_truncated")]] [[nodiscard]] inline bool is_cut_short(
    std::span<const std::byte> mapped) noexcept {
  return is_truncated(mapped);
}

}  // namespace safetensors

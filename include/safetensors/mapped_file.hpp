// A file mapped into memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "safetensors/export.hpp"

namespace safetensors {

/// A private, copy-on-write mapping of a whole file. Pages are read when they are first touched.
/// Writing to them changes this process's copy of the page and never the file.
///
/// The mapping survives closing, renaming and unlinking the file. If somebody truncates the file,
/// touching a page beyond its new end raises SIGBUS, and what somebody writes to the file may show
/// in the mapping: `Backend::kPread` is safe from both. On Linux, savers of this library that
/// overwrite a file in place first replace this process's mappings of it by copies, and so does the
/// Python package before Python opens a file for writing whose tensors are NumPy arrays.
///
/// Thread safety: that of memory. Concurrent reads are safe; the caller orders writes.
class SAFETENSORS_API MappedFile {
 public:
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Returns all bytes of the file.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  friend class FileSource;
  MappedFile(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

/// Returns whether the file has been truncated below the last of these mapped bytes, by whole
/// pages: touching that page would end the process with SIGBUS. Returns false where the system
/// cannot say: on Linux before 5.14 and on other systems.
///
/// Call it before reading mapped bytes of a file that another process may truncate. It does not
/// guarantee that the read succeeds: the file can be truncated in between.
[[nodiscard]] SAFETENSORS_API bool is_truncated(std::span<const std::byte> mapped) noexcept;

/// The old name of is_truncated(). Will be removed in the next version.
[[deprecated("use is_truncated")]] [[nodiscard]] inline bool is_cut_short(
    std::span<const std::byte> mapped) noexcept {
  return is_truncated(mapped);
}

}  // namespace safetensors

// A file in memory, without reading it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "safetensors/export.hpp"

namespace safetensors {

/// The pages of a file: private, copy on write. Writing to them changes this process's copy of the
/// page and never the file. Nothing is read before it is touched.
///
/// The mapping survives closing, renaming and unlinking the file. When another process shortens
/// the file, touching a page past its new end raises SIGBUS; `Backend::kPread` is safe from that.
class SAFETENSORS_API MappedFile {
 public:
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// All bytes of the file. Thread safe as memory is: concurrent reads are, writes are the
  /// caller's to order.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  friend class FileSource;
  MappedFile(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

}  // namespace safetensors

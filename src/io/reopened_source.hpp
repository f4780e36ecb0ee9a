// A file that is opened for each read, so that a program may have more of them than descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "io/file_source.hpp"

namespace safetensors::io {

/// Throws Error kFileChanged when a file of `nbytes` no longer has the last of these mapped bytes.
void check_mapped(std::span<const std::byte> mapped, std::uint64_t nbytes,
                  const std::filesystem::path& path);

/// Opens a file again. Throws Error: what FileSource::open throws, and kFileChanged when the path
/// is another file's by now, or the file was written to.
[[nodiscard]] std::unique_ptr<FileSource> reopen(const std::filesystem::path& path,
                                                 const FileId& id);

/// A file by its path. Holds no descriptor; what keep_open() returns holds one.
class ReopenedSource final : public ByteSource {
 public:
  /// `mapping`: what to copy from when the file cannot be reopened; may be nullptr.
  ReopenedSource(std::filesystem::path path, const FileId& id, bool is_direct,
                 std::shared_ptr<const MappedFile> mapping);

  [[nodiscard]] std::uint64_t size() const noexcept override { return id_.nbytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] unsigned concurrency() const noexcept override;
  /// Throws what reopen() throws, unless there is a mapping.
  [[nodiscard]] std::shared_ptr<const ByteSource> keep_open() const override;

 private:
  std::filesystem::path path_;
  FileId id_;
  bool is_direct_;
  std::shared_ptr<const MappedFile> mapping_;
};

}  // namespace safetensors::io

// A file that is opened for each read, so that a program can use more files than descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "io/file_source.hpp"

namespace safetensors::io {

/// Call before copying `mapped` bytes of a file that had `nbytes` when it was opened.
/// Throws: Error kFileChanged if the file has been truncated below them (see is_truncated).
void check_mapped(std::span<const std::byte> mapped, std::uint64_t nbytes,
                  const std::filesystem::path& path);

/// Opens a file again.
/// Throws: what FileSource::open throws; Error kFileChanged if the path names another file now, or
///   the file was written to.
[[nodiscard]] std::unique_ptr<FileSource> reopen(const std::filesystem::path& path,
                                                 const FileId& id);

/// A file by its path. Holds no descriptor; the source that keep_open() returns holds one.
class ReopenedSource final : public ByteSource {
 public:
  /// If the file cannot be opened again, reads copy from `mapping`, unless it is null.
  ReopenedSource(std::filesystem::path path, const FileId& id, bool is_direct,
                 std::shared_ptr<const MappedFile> mapping);

  [[nodiscard]] std::uint64_t size() const noexcept override { return id_.nbytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] unsigned concurrency() const noexcept override;
  /// Throws: what reopen() throws, unless there is a mapping.
  [[nodiscard]] std::shared_ptr<const ByteSource> keep_open() const override;

 private:
  std::filesystem::path path_;
  FileId id_;
  bool is_direct_;
  std::shared_ptr<const MappedFile> mapping_;
};

}  // namespace safetensors::io

// A file open for reading. Implemented in posix/ and windows/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/file_id.hpp"
#include "safetensors/mapped_file.hpp"

namespace safetensors {

/// A regular file, by a descriptor that child processes do not inherit.
/// Thread safety: immutable; all members may be called from many threads at once.
class FileSource final : public ByteSource {
 public:
  /// Opens a file by its path. Never blocks on the other end of a pipe.
  /// Throws: Error kIo, kNotRegularFile, or kInvalidArgument (the path contains a NUL).
  [[nodiscard]] static std::unique_ptr<FileSource> open(const std::filesystem::path& path);
  /// Opens the file behind a descriptor, which the caller keeps. `label` names it in errors.
  /// Throws: Error kIo or kNotRegularFile.
  [[nodiscard]] static std::unique_ptr<FileSource> duplicate(int descriptor,
                                                             const std::filesystem::path& label);
  /// Returns what id() would return if the file were opened now.
  /// Throws: what open() throws.
  [[nodiscard]] static FileId find_id(const std::filesystem::path& path);
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return id_.nbytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  /// More readers than processors while most of the file is not cached: they mostly wait then.
  [[nodiscard]] unsigned concurrency() const noexcept override;
  /// On Windows always -1.
  [[nodiscard]] int descriptor() const override;

  /// Returns the file's identity at the time of opening.
  [[nodiscard]] const FileId& id() const noexcept { return id_; }
  /// Returns whether the file is on a network file system, or on one in user space.
  [[nodiscard]] bool is_remote() const noexcept;
  /// Returns how many of its bytes are in the page cache; its size if the system does not say.
  [[nodiscard]] std::uint64_t cached_nbytes() const noexcept;
  /// Returns whether this range, which is not empty, is in the page cache. Returns false if the
  /// system does not say.
  [[nodiscard]] bool is_cached(std::uint64_t offset, std::uint64_t nbytes) const noexcept;
  /// Returns a source that reads the same file past the page cache, and takes `file`. Returns
  /// nullptr if the system cannot do so, and leaves `file` unchanged.
  [[nodiscard]] static std::unique_ptr<ByteSource> make_direct(std::unique_ptr<FileSource>& file);

  /// Maps the whole file. Returns nullptr if the system has no room for the mapping.
  /// Throws: Error kIo if the system refuses for another reason.
  [[nodiscard]] std::shared_ptr<const MappedFile> map() const;

 private:
  static constexpr unsigned kReadersOfSlowFile = 8;  // which wait for a disk or a server

  class Handle;
  FileSource(std::unique_ptr<Handle> handle, const std::filesystem::path& path, const FileId& id);

  std::unique_ptr<Handle> handle_;
  std::filesystem::path path_;
  FileId id_;
};

}  // namespace safetensors

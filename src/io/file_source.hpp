// A file open for reading. One declaration, one implementation for each system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/file_bytes.hpp"
#include "safetensors/mapped_file.hpp"

namespace safetensors {

/// Tells a file from another, and from itself after it was written to.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t file = 0;
  std::uint64_t nbytes = 0;
  std::int64_t modified = 0;  ///< by the system's finest clock for it
  bool operator==(const FileId&) const = default;
};

/// Owns a descriptor that is closed over exec. Immutable and thread safe.
class FileSource final : public ByteSource {
 public:
  /// Throws Error: kIo, kNotRegularFile (never waits for the other end of a pipe), or
  /// kInvalidArgument (a NUL in the path).
  [[nodiscard]] static std::unique_ptr<FileSource> open(const std::filesystem::path& path);
  /// Of a descriptor that stays the caller's; `label` names it in errors.
  [[nodiscard]] static std::unique_ptr<FileSource> duplicate(int descriptor,
                                                             const std::filesystem::path& label);
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  ~FileSource() override;

  [[nodiscard]] std::uint64_t size() const noexcept override { return id_.nbytes; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  /// More than there are processors while most of the file has to be fetched: readers then wait.
  [[nodiscard]] unsigned concurrency() const noexcept override;

  /// As it was when it was opened.
  [[nodiscard]] const FileId& id() const noexcept { return id_; }
  /// Whether the file lies behind a network, or on a file system in user space.
  [[nodiscard]] bool is_remote() const noexcept;
  /// Bytes of it in the page cache; its size when the system does not tell.
  [[nodiscard]] std::uint64_t cached_nbytes() const noexcept;
  /// The same file, read past the page cache. nullptr where the system cannot: then `file` is as
  /// it was.
  [[nodiscard]] static std::unique_ptr<ByteSource> make_direct(std::unique_ptr<FileSource>& file);

  /// Maps the whole file. nullptr when the system has no room for the mapping; throws Error kIo
  /// for other refusals.
  [[nodiscard]] std::shared_ptr<const MappedFile> map() const;

 private:
  class Handle;
  FileSource(std::unique_ptr<Handle> handle, const std::filesystem::path& path, const FileId& id);

  std::unique_ptr<Handle> handle_;
  std::filesystem::path path_;
  FileId id_;
};

}  // namespace safetensors

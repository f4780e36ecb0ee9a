// A file that a save or a change in place reads, locks and writes by its descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/posix/fd.hpp"
#include "safetensors/detail/folder.hpp"

namespace safetensors::io {

/// A regular file that is held open. Its members throw Error kIo with its path.
class HeldFile {
 public:
  /// How a file is opened: see Folder::open_file().
  struct Access {
    bool writes = true;
    bool owned = true;
  };

  /// Returns nothing if there is no file. Throws: what Folder::open_file() throws.
  [[nodiscard]] static std::optional<HeldFile> open(const detail::Folder& folder,
                                                    const detail::OwnName& name, Access access);

  /// Locks the file until it is closed. Returns 0; EWOULDBLOCK if another process has locked it; or
  /// another error number on a file system without locks.
  [[nodiscard]] int lock() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  [[nodiscard]] std::uint64_t size() const;
  /// Returns how many names (hard links) the file has; 0 if it was removed.
  [[nodiscard]] std::uint64_t name_count() const;
  /// Fills `to` with the bytes from `offset` on. Throws: Error kFileChanged if the file ends first.
  void read_at(std::uint64_t offset, std::span<std::byte> to) const;
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
  /// Returns the content, at most `most` bytes of it.
  [[nodiscard]] std::string read(std::uint64_t most) const;
  /// Writes the content of an empty file.
  void fill(std::string_view text) const { write_at(0, std::as_bytes(std::span(text))); }
  void clear() const;
  void flush() const;

 private:
  HeldFile(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  /// Reads until `to` is full or the file ends. Returns how many bytes it read.
  [[nodiscard]] std::size_t read_some(std::uint64_t offset, std::span<std::byte> to) const;

  Fd fd_;
  std::filesystem::path path_;
};

/// Waits until a file is on the disk. Throws: Error kIo, with ENOENT if there is none.
void flush_file(const detail::Folder& folder, const detail::OwnName& name);

}  // namespace safetensors::io

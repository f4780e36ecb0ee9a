// A file in a private folder that says what a save does: read, locked and written as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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
  [[nodiscard]] std::uint64_t size() const;
  /// Returns whether the file has no name any more.
  [[nodiscard]] bool is_removed() const;
  /// Returns the content, at most `most` bytes of it.
  [[nodiscard]] std::string read(std::uint64_t most) const;
  /// Writes the content of an empty file.
  void fill(std::string_view text) const;
  void clear() const;
  void flush() const;

 private:
  HeldFile(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Fd fd_;
  std::filesystem::path path_;
};

/// Waits until a file is on the disk. Throws: Error kIo, with ENOENT if there is none.
void flush_file(const detail::Folder& folder, const detail::OwnName& name);

}  // namespace safetensors::io

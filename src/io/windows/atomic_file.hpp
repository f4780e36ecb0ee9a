// A file that gets its name only when it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// A temporary file in the directory of `target`. The destructor removes it, unless commit()
/// succeeded.
class AtomicFile {
 public:
  /// Creates the temporary file. `old` is the file to be replaced, whose access list is copied as
  /// far as the system allows.
  /// Throws: Error kIo.
  AtomicFile(const std::filesystem::path& target, const std::optional<std::filesystem::path>& old);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  [[nodiscard]] HANDLE handle() const noexcept { return handle_.get(); }
  /// Returns the temporary path.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return temporary_; }
  /// Reserves disk space, if the file system supports that.
  /// Throws: Error kIo if there is not enough.
  void reserve(std::uint64_t nbytes);
  /// Renames the file to `target`. Returns 0, or the system's error; the target is then unchanged.
  /// Throws: Error kIo if flushing fails.
  [[nodiscard]] DWORD commit(bool fsync);

 private:
  void create();
  [[nodiscard]] DWORD rename_over(bool fsync);
  [[nodiscard]] DWORD rename_past();

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once it was renamed
  bool replaces_;
  Handle handle_;
};

}  // namespace safetensors::io

// A file that appears under its name only when it is whole.
#pragma once

#include <cstdint>
#include <filesystem>

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// A temporary file beside `target`. Unless committed it is removed by the destructor.
class AtomicFile {
 public:
  /// `replaces`: whether there is a file, whose access list is carried over as far as the system
  /// allows. Throws Error kIo.
  AtomicFile(const std::filesystem::path& target, bool replaces);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  [[nodiscard]] HANDLE handle() const noexcept { return handle_.get(); }
  /// Sets the space aside, where the file system can. Throws Error kIo when there is not enough.
  void reserve(std::uint64_t nbytes);
  /// Renames the file to its name. Returns 0, or the system's error, and then the target is as it
  /// was. Throws Error kIo when flushing fails.
  [[nodiscard]] DWORD commit(bool fsync);

 private:
  void create();
  [[nodiscard]] DWORD rename_over(bool fsync);
  [[nodiscard]] DWORD rename_past();

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once it is gone
  bool replaces_;
  Handle handle_;
};

}  // namespace safetensors::io

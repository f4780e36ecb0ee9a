// A file that gets its name only when it is complete.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "io/posix/fd.hpp"

namespace safetensors::io {

/// A file whose mode, owner, group and access list are copied.
struct OldFile {
  std::filesystem::path path;
  struct stat status;
};

/// A temporary file in the directory of `target`. The destructor removes it, unless take_name()
/// succeeded.
class AtomicFile {
 public:
  /// Creates the temporary file, and locks it with flock() while it is open, so that others see
  /// that it is in use. `old` is the file to be replaced. The new file gets its mode, owner, group
  /// and access list as far as the system allows, and grants nobody a right that the old file did
  /// not grant. Throws: Error kIo.
  AtomicFile(const std::filesystem::path& target, const std::optional<OldFile>& old);

  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  /// Returns the temporary path.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return temporary_.path; }
  /// Flushes the file if `fsync`, and closes it. Throws: Error kIo.
  void complete(bool fsync);
  /// Renames the file to `target`, replacing a file of that name. Returns 0, or the errno.
  [[nodiscard]] int take_name() noexcept;

 private:
  /// The destructor removes the file, unless `path` is empty or this is a forked child.
  struct Temporary {
    Temporary() = default;
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary();

    std::filesystem::path path;
    OwnProcess process;
  };

  void take_over(const OldFile& old);

  std::filesystem::path target_;
  Temporary temporary_;  // a member, so that it is removed also if the constructor throws
  Fd fd_;
};

}  // namespace safetensors::io

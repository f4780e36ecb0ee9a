// A file that appears under its name only when it is whole.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/posix/fd.hpp"

namespace safetensors::io {

/// A temporary file beside `target`. Unless committed it is removed by the destructor.
class AtomicFile {
 public:
  /// `old`: status of the file to be replaced, whose mode, owner and access list are carried over
  /// as far as the system allows. Throws Error kIo.
  AtomicFile(const std::filesystem::path& target, const std::optional<struct stat>& old);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  /// Sets the space aside, where the file system can. Throws Error kIo when there is not enough.
  void reserve(std::uint64_t nbytes);
  /// Renames the file to its name. Throws Error kIo.
  void commit(bool fsync);

 private:
  void take_over(const struct stat& old);

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  Fd fd_;
};

}  // namespace safetensors::io

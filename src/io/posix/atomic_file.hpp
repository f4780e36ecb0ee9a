// A file that appears under its name only when it is whole.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "io/posix/fd.hpp"

namespace safetensors::io {

/// A temporary file beside `target`. Unless committed it is removed by the destructor.
class AtomicFile {
 public:
  /// `old`: status of the file to be replaced. Its mode, owner, group and access list are carried
  /// over as far as the system allows, and nobody gets a right that they lacked. Throws Error kIo.
  AtomicFile(const std::filesystem::path& target, const std::optional<struct stat>& old);

  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  /// Ends the writing. Throws Error kIo.
  void complete(bool fsync);
  /// Gives the file its name, over what has it now. 0, or the system's reason to refuse.
  [[nodiscard]] int take_name() noexcept;

 private:
  /// A file that is removed, unless its path was taken away.
  struct Temporary {
    Temporary() = default;
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary();

    std::filesystem::path path;
  };

  void take_over(const struct stat& old);

  std::filesystem::path target_;
  Temporary temporary_;  // a member, so that it goes too when the constructor throws
  Fd fd_;
};

}  // namespace safetensors::io

// Ownership of a file descriptor.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <utility>

namespace safetensors::io {

/// Bytes to request by one system call: Linux reads and writes at most 2 GiB, macOS refuses more.
inline constexpr std::size_t kMaxPerRead = std::size_t{1} << 30;

/// Whether this is the process that made the object. A forked child inherits files that its parent
/// is writing, and must neither remove nor truncate them.
class OwnProcess {
 public:
  [[nodiscard]] bool is_this() const noexcept { return ::getpid() == pid_; }

 private:
  pid_t pid_ = ::getpid();
};

/// Owns a file descriptor and closes it. Holds -1 if it is not open.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    Fd(std::move(other)).swap(*this);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  /// Returns the descriptor, which the caller then owns.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void swap(Fd& other) noexcept { std::swap(fd_, other.fd_); }

 private:
  int fd_ = -1;
};

}  // namespace safetensors::io

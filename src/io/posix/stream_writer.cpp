#include "io/posix/stream_writer.hpp"

#include <fcntl.h>

#include <cerrno>

#include "io/gather.hpp"
#include "io/os_error.hpp"

namespace safetensors::io {

void write_pieces(int fd, const FileContent& content, const std::filesystem::path& path,
                  const Interrupt& interrupt) {
  write_gathered(content, interrupt, [&](std::span<const std::byte> bytes) -> std::size_t {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done >= 0) return static_cast<std::size_t>(done);
    if (errno != EINTR) fail_write(errno, path);
    return 0;
  });
}

void flush(int fd, const std::filesystem::path& path) {
#if defined(F_FULLFSYNC)
  if (::fcntl(fd, F_FULLFSYNC) == 0) return;  // macOS: fsync alone stops at the drive's cache
#endif
  while (::fsync(fd) != 0) {
    if (errno != EINTR) fail_write(errno, path);
  }
}

void close_checked(Fd fd, const std::filesystem::path& path) {
  // Not retried after EINTR: on Linux the descriptor is gone by then.
  if (::close(fd.release()) != 0 && errno != EINTR) fail_write(errno, path);
}

}  // namespace safetensors::io

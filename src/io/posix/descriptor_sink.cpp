#include "io/posix/stream_writer.hpp"

#include <fcntl.h>

#include <cerrno>

#include "io/gather.hpp"
#include "io/os_error.hpp"
#include "io/temporary_name.hpp"

namespace safetensors::io {

void write_pieces(int fd, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options) {
  write_gathered(content, options, [&](std::span<const std::byte> bytes) -> std::size_t {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done > 0) return static_cast<std::size_t>(done);
    // Nothing was written, without an error: repeating the call might never end.
    if (done == 0) fail_write(EIO, path);
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

Fd open_folder(const std::filesystem::path& path) {
  while (true) {
    Fd folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // A user may be allowed to create files in a directory but not to read it.
    if (folder.is_open() || errno == EACCES) return folder;
    if (errno != EINTR) fail_write(errno, path);
  }
}

void flush_folder(int fd, const std::filesystem::path& path) {
  while (::fsync(fd) != 0) {
    if (errno == EINVAL || errno == EBADF || errno == ENOTSUP || errno == ENOSYS) return;
    if (errno != EINTR) fail_write(errno, path);
  }
}

void reserve(int fd, std::uint64_t nbytes, bool keep_size, const std::filesystem::path& path) {
#if defined(__linux__)
  // Not posix_fallocate, which glibc emulates by writing to every block. Reserving fails early on a
  // full disk, and avoids the flush with which ext4 delays a rename (delayed allocation).
  if (nbytes == 0) return;
  const int mode = keep_size ? FALLOC_FL_KEEP_SIZE : 0;
  while (::fallocate(fd, mode, 0, static_cast<off_t>(nbytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail_write(errno, path);
    return;  // not supported: the writes report errors
  }
#else
  (void)fd;
  (void)nbytes;
  (void)keep_size;
  (void)path;
#endif
}

void close_checked(Fd fd, const std::filesystem::path& path) {
  // Not retried after EINTR: on Linux the descriptor is gone by then.
  if (::close(fd.release()) != 0 && errno != EINTR) fail_write(errno, path);
}

}  // namespace safetensors::io

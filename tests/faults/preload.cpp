// A library for LD_PRELOAD. Records the system calls for files and memory, and makes one of them
// fail, transfer less, or kill the process.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <ctime>

#include "control.hpp"
#include "turn.hpp"

namespace {

using faults::Kind;
using faults::preload::next;
using faults::preload::Turn;

bool makes_file(int flags) { return (flags & (O_CREAT | O_TMPFILE)) != 0; }

int open_file(const char* name, const char* path, int flags, mode_t mode) {
  Turn turn(Kind::kOpen, -1, path, flags);
  const int fd =
      turn.run([&] { return next<int (*)(const char*, int, mode_t)>(name)(path, flags, mode); });
  turn.opened(fd);
  return fd;
}

int open_file_at(const char* name, int folder, const char* path, int flags, mode_t mode) {
  Turn turn(Kind::kOpen, -1, path, flags);
  const int fd = turn.run([&] {
    return next<int (*)(int, const char*, int, mode_t)>(name)(folder, path, flags, mode);
  });
  turn.opened(fd);
  return fd;
}

}  // namespace

// Both names of each function: programs built for large files call those that end in 64.
#define INTERPOSE __attribute__((visibility("default")))
#define OPEN(NAME)                                                    \
  INTERPOSE int NAME(const char* path, int flags, ...) {              \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    const mode_t mode = makes_file(flags) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                     \
    return open_file(#NAME, path, flags, mode);                       \
  }
#define OPENAT(NAME)                                                  \
  INTERPOSE int NAME(int folder, const char* path, int flags, ...) {  \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    const mode_t mode = makes_file(flags) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                     \
    return open_file_at(#NAME, folder, path, flags, mode);            \
  }
#define PREAD(NAME)                                                                 \
  INTERPOSE ssize_t NAME(int fd, void* to, size_t size, off_t at) {                 \
    return Turn(Kind::kRead, fd, nullptr).run(size, [&](std::size_t some) {         \
      return next<ssize_t (*)(int, void*, size_t, off_t)>(#NAME)(fd, to, some, at); \
    });                                                                             \
  }
#define PWRITE(NAME)                                                                        \
  INTERPOSE ssize_t NAME(int fd, const void* from, size_t size, off_t at) {                 \
    return Turn(Kind::kWrite, fd, nullptr).run(size, [&](std::size_t some) {                \
      return next<ssize_t (*)(int, const void*, size_t, off_t)>(#NAME)(fd, from, some, at); \
    });                                                                                     \
  }
#define MMAP(NAME)                                                                             \
  INTERPOSE void* NAME(void* at, size_t size, int protection, int flags, int fd,               \
                       off_t begin) noexcept {                                                 \
    const Kind kind = fd < 0 ? Kind::kMapMemory : Kind::kMapFile;                              \
    return Turn(kind, fd, nullptr).run([&]() -> MapResult {                                    \
      return next<void* (*)(void*, size_t, int, int, int, off_t)>(#NAME)(at, size, protection, \
                                                                         flags, fd, begin);    \
    });                                                                                        \
  }
#define RESERVE(NAME)                                                             \
  INTERPOSE int NAME(int fd, int mode, off_t begin, off_t size) {                 \
    return Turn(Kind::kReserve, fd, nullptr).run([&] {                            \
      return next<int (*)(int, int, off_t, off_t)>(#NAME)(fd, mode, begin, size); \
    });                                                                           \
  }
#define TRUNCATE(NAME)                                   \
  INTERPOSE int NAME(int fd, off_t size) noexcept {      \
    return Turn(Kind::kTruncate, fd, nullptr).run([&] {  \
      return next<int (*)(int, off_t)>(#NAME)(fd, size); \
    });                                                  \
  }
#define STATUS(NAME, STRUCT)                                                  \
  INTERPOSE int NAME(const char* path, struct STRUCT* status) noexcept {      \
    return Turn(Kind::kStatus, -1, path).run([&] {                            \
      return next<int (*)(const char*, struct STRUCT*)>(#NAME)(path, status); \
    });                                                                       \
  }
#define FSTATUS(NAME, STRUCT)                                       \
  INTERPOSE int NAME(int fd, struct STRUCT* status) noexcept {      \
    return Turn(Kind::kStatus, fd, nullptr).run([&] {               \
      return next<int (*)(int, struct STRUCT*)>(#NAME)(fd, status); \
    });                                                             \
  }
#define STATUSAT(NAME, STRUCT)                                                                  \
  INTERPOSE int NAME(int folder, const char* path, struct STRUCT* status, int flags) noexcept { \
    return Turn(Kind::kStatus, -1, path).run([&] {                                              \
      return next<int (*)(int, const char*, struct STRUCT*, int)>(#NAME)(folder, path, status,  \
                                                                         flags);                \
    });                                                                                         \
  }
#define FCNTL(NAME)                                                                                \
  INTERPOSE int NAME(int fd, int command, ...) {                                                   \
    va_list more;                                                                                  \
    va_start(more, command);                                                                       \
    const long argument = va_arg(more, long);                                                      \
    va_end(more);                                                                                  \
    const auto call = [&] { return next<int (*)(int, int, long)>(#NAME)(fd, command, argument); }; \
    if (command != F_DUPFD && command != F_DUPFD_CLOEXEC) return call();                           \
    return Turn(Kind::kDuplicate, fd, nullptr).run(call);                                          \
  }

#define SEEK(NAME)                                                    \
  INTERPOSE off_t NAME(int fd, off_t to, int whence) noexcept {       \
    return Turn(Kind::kSeek, fd, nullptr).run([&] {                   \
      return next<off_t (*)(int, off_t, int)>(#NAME)(fd, to, whence); \
    });                                                               \
  }

namespace {

/// The result of mmap; MAP_FAILED, which is -1, on failure.
struct MapResult {
  MapResult(void* given) : address(given) {}  // NOLINT: converts on purpose
  explicit MapResult(long number) : address(reinterpret_cast<void*>(number)) {}
  operator void*() const { return address; }  // NOLINT: converts on purpose
  void* address;
};

}  // namespace

extern "C" {

INTERPOSE void faults_begin(const faults::Plan* wanted) {
  faults::preload::plan = *wanted;
  faults::preload::began_failing.store(false);
  faults::preload::count.store(0);
  faults::preload::counting.store(true);
}

INTERPOSE std::size_t faults_end() {
  faults::preload::counting.store(false);
  return faults::preload::count.load();
}

INTERPOSE const faults::Call* faults_calls() { return faults::preload::calls; }

// Some saves look for files that killed saves have left, but none before the clock's beginning. So
// each run of a save makes the same calls.
INTERPOSE int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = next<int (*)(clockid_t, struct timespec*)>("clock_gettime")(clock, time);
  if (clock == CLOCK_MONOTONIC && faults::preload::counting.load()) *time = {-1, 0};
  return result;
}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PREAD(pread)
PREAD(pread64)
PWRITE(pwrite)
PWRITE(pwrite64)
MMAP(mmap)
MMAP(mmap64)
RESERVE(fallocate)
RESERVE(fallocate64)
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
STATUS(stat, stat)
STATUS(stat64, stat64)
STATUS(lstat, stat)
STATUS(lstat64, stat64)
FSTATUS(fstat, stat)
FSTATUS(fstat64, stat64)
FSTATUS(fstatfs, statfs)
FSTATUS(fstatfs64, statfs64)
STATUSAT(fstatat, stat)
STATUSAT(fstatat64, stat64)
FCNTL(fcntl)
FCNTL(fcntl64)
SEEK(lseek)
SEEK(lseek64)

INTERPOSE ssize_t read(int fd, void* to, size_t size) {
  return Turn(Kind::kRead, fd, nullptr).run(size, [&](std::size_t some) {
    return next<ssize_t (*)(int, void*, size_t)>("read")(fd, to, some);
  });
}

INTERPOSE ssize_t write(int fd, const void* from, size_t size) {
  return Turn(Kind::kWrite, fd, nullptr).run(size, [&](std::size_t some) {
    return next<ssize_t (*)(int, const void*, size_t)>("write")(fd, from, some);
  });
}

INTERPOSE ssize_t writev(int fd, const iovec* pieces, int piece_count) {
  Turn turn(Kind::kWrite, fd, nullptr);
  return turn.run([&]() -> ssize_t {
    return next<ssize_t (*)(int, const iovec*, int)>("writev")(fd, pieces, piece_count);
  });
}

INTERPOSE ssize_t copy_file_range(int from, off_t* begin, int to, off_t* offset, size_t size,
                                  unsigned flags) {
  return Turn(Kind::kCopy, to, nullptr).run(size, [&](std::size_t some) {
    return next<ssize_t (*)(int, off_t*, int, off_t*, size_t, unsigned)>("copy_file_range")(
        from, begin, to, offset, some, flags);
  });
}

INTERPOSE int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list more;
  va_start(more, request);
  void* const argument = va_arg(more, void*);
  va_end(more);
  const auto call = [&] {
    return next<int (*)(int, unsigned long, void*)>("ioctl")(fd, request, argument);
  };
  return request == FICLONERANGE ? Turn(Kind::kShare, fd, nullptr).run(call) : call();
}

INTERPOSE int flock(int fd, int operation) noexcept {
  return Turn(Kind::kLock, fd, nullptr).run([&] {
    return next<int (*)(int, int)>("flock")(fd, operation);
  });
}

INTERPOSE int posix_fallocate(int fd, off_t begin, off_t size) {
  Turn turn(Kind::kReserve, fd, nullptr);
  const int done = turn.run(
      [&] { return next<int (*)(int, off_t, off_t)>("posix_fallocate")(fd, begin, size); });
  return turn.fails() ? errno : done;
}

INTERPOSE int fsync(int fd) {
  return Turn(Kind::kSync, fd, nullptr).run([&] { return next<int (*)(int)>("fsync")(fd); });
}

INTERPOSE int fdatasync(int fd) {
  return Turn(Kind::kSync, fd, nullptr).run([&] { return next<int (*)(int)>("fdatasync")(fd); });
}

INTERPOSE int close(int fd) {
  Turn turn(Kind::kClose, fd, nullptr);
  const auto call = next<int (*)(int)>("close");
  if (turn.fails()) call(fd);  // as Linux: the descriptor is gone, whatever close says
  return turn.run([&] { return call(fd); });
}

INTERPOSE int rename(const char* from, const char* to) noexcept {
  return Turn(Kind::kRename, -1, from).run([&] {
    return next<int (*)(const char*, const char*)>("rename")(from, to);
  });
}

INTERPOSE int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return Turn(Kind::kRename, -1, from).run([&] {
    return next<int (*)(int, const char*, int, const char*)>("renameat")(from_folder, from,
                                                                         to_folder, to);
  });
}

INTERPOSE int unlink(const char* path) noexcept {
  return Turn(Kind::kUnlink, -1, path).run([&] {
    return next<int (*)(const char*)>("unlink")(path);
  });
}

INTERPOSE int unlinkat(int folder, const char* path, int flags) noexcept {
  return Turn(Kind::kUnlink, -1, path).run([&] {
    return next<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
  });
}

INTERPOSE ssize_t readlink(const char* path, char* to, size_t size) noexcept {
  return Turn(Kind::kLink, -1, path).run([&]() -> ssize_t {
    return next<ssize_t (*)(const char*, char*, size_t)>("readlink")(path, to, size);
  });
}

INTERPOSE ssize_t readlinkat(int folder, const char* path, char* to, size_t size) noexcept {
  return Turn(Kind::kLink, -1, path).run([&]() -> ssize_t {
    return next<ssize_t (*)(int, const char*, char*, size_t)>("readlinkat")(folder, path, to, size);
  });
}

INTERPOSE int fchmod(int fd, mode_t mode) noexcept {
  return Turn(Kind::kMode, fd, nullptr).run([&] {
    return next<int (*)(int, mode_t)>("fchmod")(fd, mode);
  });
}

INTERPOSE int fchown(int fd, uid_t user, gid_t group) noexcept {
  return Turn(Kind::kMode, fd, nullptr).run([&] {
    return next<int (*)(int, uid_t, gid_t)>("fchown")(fd, user, group);
  });
}

INTERPOSE ssize_t getxattr(const char* path, const char* name, void* to, size_t size) noexcept {
  return Turn(Kind::kAttribute, -1, path).run([&]() -> ssize_t {
    return next<ssize_t (*)(const char*, const char*, void*, size_t)>("getxattr")(path, name, to,
                                                                                  size);
  });
}

INTERPOSE ssize_t lgetxattr(const char* path, const char* name, void* to, size_t size) noexcept {
  return Turn(Kind::kAttribute, -1, path).run([&]() -> ssize_t {
    return next<ssize_t (*)(const char*, const char*, void*, size_t)>("lgetxattr")(path, name, to,
                                                                                   size);
  });
}

INTERPOSE int fsetxattr(int fd, const char* name, const void* from, size_t size,
                        int flags) noexcept {
  return Turn(Kind::kAttribute, fd, nullptr).run([&] {
    return next<int (*)(int, const char*, const void*, size_t, int)>("fsetxattr")(fd, name, from,
                                                                                  size, flags);
  });
}

INTERPOSE int fremovexattr(int fd, const char* name) noexcept {
  return Turn(Kind::kAttribute, fd, nullptr).run([&] {
    return next<int (*)(int, const char*)>("fremovexattr")(fd, name);
  });
}

}  // extern "C"

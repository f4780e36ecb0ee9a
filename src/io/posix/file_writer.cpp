#include "io/file_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <optional>
#include <string>

#include "io/os_error.hpp"
#include "io/posix/atomic_file.hpp"
#include "io/posix/detached_content.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/stream_writer.hpp"
#include "io/temporary_name.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as Linux

/// Whether a symbolic link is one of /proc, as /proc/self/fd/3: the kernel follows it to an open
/// file, which its text need not name. The file may have been removed, or something mounted over
/// it.
bool is_kernel_link(const fs::path& link) {
#if defined(__linux__)
  constexpr long kProc = 0x9FA0;
  struct statfs system{};
  return ::statfs(folder_of(link).c_str(), &system) == 0 &&
         static_cast<long>(system.f_type) == kProc;
#else
  (void)link;
  return false;
#endif
}

/// What a path leads to.
struct Target {
  fs::path path;
  bool by_kernel_link = false;
};

/// Where a symbolic link leads, whether or not anything is there: saving through a link replaces
/// what it names, not the link.
Target follow_links(fs::path path) {
  bool by_kernel_link = false;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(path, error);
    if (error) {
      const int number = error.value();
      // No link, nothing there, or links are unknown here.
      if (number == EINVAL || number == ENOENT || number == ENOSYS || number == ENOTSUP)
        return {path, by_kernel_link};
      fail_write(number, path);
    }
    by_kernel_link = by_kernel_link || is_kernel_link(path);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  fail_write(ELOOP, path);
}

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) return status;
  if (errno == ENOENT) return std::nullopt;
  fail_write(errno, path);
}

/// Whether the file of that status is the one that has this name.
bool is_file(const struct stat& file, const fs::path& path) {
  const std::optional<struct stat> there = status_of(path);
  return there && there->st_dev == file.st_dev && there->st_ino == file.st_ino;
}

Fd open_for_writing(const fs::path& path, int flags, const Interrupt& interrupt) {
  while (true) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666));
    if (fd.is_open()) return fd;
    if (errno != EINTR) fail_write(errno, path);
    if (interrupt) interrupt();  // a pipe waits here for its reader
  }
}

void write_stream(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  const Fd fd = open_for_writing(path, 0, options.interrupt);
  write_pieces(fd.get(), content, path, options);
}

/// Not atomic: for places where nothing can be created beside the file or renamed over it.
void write_in_place(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  Fd fd = open_for_writing(path, 0, options.interrupt);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail_write(errno, path);
  const DetachedContent detached(content, path, options.interrupt);
  // Before anything is overwritten: on a full disk the old content stays.
  try {
    reserve(fd.get(), content.total_nbytes, true, path);
  } catch (const Error&) {
    if (::ftruncate(fd.get(), status.st_size) != 0) {
      // What was set aside stays with the file: no harm.
    }
    throw;
  }
  write_pieces(fd.get(), detached.content(), path, options);
  // Not before: that would give the space back, and pull the pages from under those who map them.
  if (::ftruncate(fd.get(), static_cast<off_t>(content.total_nbytes)) != 0) fail_write(errno, path);
  if (options.fsync) flush(fd.get(), path);
  close_checked(std::move(fd), path);
}

/// For a new file where files can be created but not renamed.
void write_under_own_name(const fs::path& path, const FileContent& content,
                          const WriteOptions& options) {
  const Fd folder = options.fsync ? open_folder(path) : Fd();
  (void)open_for_writing(path, O_CREAT | O_EXCL, options.interrupt);
  try {
    write_in_place(path, content, options);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  if (folder.is_open()) flush_folder(folder.get(), path);
}

/// Whether the folder or file system refuses what replacing needs, rather than the write itself:
/// no right to create files there, a mount point, no rename.
bool cannot_replace(int os_error) noexcept {
  switch (os_error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case EBUSY:
    case EXDEV:
    case ENOSYS:
    case ENOTSUP:
#if EOPNOTSUPP != ENOTSUP
    case EOPNOTSUPP:
#endif
      return true;
    default:
      return false;
  }
}

/// Whether the file was replaced; false when it cannot be, and is as it was.
bool replace(const fs::path& path, const std::optional<struct stat>& old,
             const FileContent& content, const WriteOptions& options) {
  // First of all: that it cannot be opened must not come out when the file has its name already.
  const Fd folder = options.fsync ? open_folder(path) : Fd();
  std::optional<AtomicFile> file;
  try {
    file.emplace(path, old);
  } catch (const Error& error) {
    if (old && cannot_replace(error.os_error())) return false;
    throw;
  }
  reserve(file->descriptor(), content.total_nbytes, false, path);
  write_pieces(file->descriptor(), content, path, options);
  file->complete(options.fsync);
  if (const int refusal = file->take_name()) {
    if (cannot_replace(refusal)) return false;
    fail_write(refusal, path);
  }
  if (folder.is_open()) flush_folder(folder.get(), path);
  return true;
}

}  // namespace

void write_file(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  check_path(path);
  const std::optional<struct stat> found = status_of(path);
  if (found && S_ISDIR(found->st_mode)) fail_write(EISDIR, path);
  if (found && (S_ISFIFO(found->st_mode) || S_ISCHR(found->st_mode))) {
    write_stream(path, content, options);
    return;
  }
  if (found && !S_ISREG(found->st_mode)) {
    fail(ErrorCode::kNotRegularFile, "neither a file nor a pipe", {.path = path});
  }
  const auto [target, by_kernel_link] = follow_links(path);
  if (found && by_kernel_link && !is_file(*found, target)) {
    write_in_place(path, content, options);  // through the descriptor
    return;
  }
  if (replace(target, found, content, options)) return;
  if (found) {
    write_in_place(target, content, options);
  } else {  // created nowhere: rename is what failed
    write_under_own_name(target, content, options);
  }
}

}  // namespace safetensors::io

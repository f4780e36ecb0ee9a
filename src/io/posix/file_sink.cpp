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

constexpr int kMaxLinks = 40;  // as in Linux

/// Returns whether a symbolic link is in /proc, such as /proc/self/fd/3. The kernel follows such a
/// link to an open file, which the link's text need not name: the file may have been removed, or
/// something mounted over it.
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

/// The result of following symbolic links.
struct Target {
  fs::path path;
  bool by_kernel_link = false;
};

/// Returns the path that a symbolic link leads to, also if nothing exists there: saving through a
/// link replaces what it names, not the link.
Target follow_links(fs::path path) {
  bool by_kernel_link = false;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(path, error);
    if (error) {
      const int number = error.value();
      // Not a link, no file, or a file system without links.
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

/// Returns whether the file with this status is the one that the path names.
bool is_file(const struct stat& file, const fs::path& path) {
  const std::optional<struct stat> there = status_of(path);
  return there && there->st_dev == file.st_dev && there->st_ino == file.st_ino;
}

Fd open_for_writing(const fs::path& path, int flags, const Interrupt& interrupt) {
  while (true) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666));
    if (fd.is_open()) return fd;
    if (errno != EINTR) fail_write(errno, path);
    if (interrupt) interrupt();  // open() blocks until a pipe has a reader
  }
}

void write_stream(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  const Fd fd = open_for_writing(path, 0, options.interrupt);
  write_pieces(fd.get(), content, path, options);
}

/// Overwrites the file. Not atomic: for directories in which no file can be created or renamed.
void write_in_place(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  Fd fd = open_for_writing(path, 0, options.interrupt);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail_write(errno, path);
  const DetachedContent detached(content, path, options.interrupt);
  // Before anything is overwritten, so that the old content is kept if the disk is full.
  try {
    reserve(fd.get(), content.total_nbytes, true, path);
  } catch (const Error&) {
    if (::ftruncate(fd.get(), status.st_size) != 0) {
      // The file keeps the reserved space, which does no harm.
    }
    throw;
  }
  write_pieces(fd.get(), detached.content(), path, options);
  // Only now: truncating earlier would free the reserved space, and touching the pages would end
  // other processes that have mapped the file.
  if (::ftruncate(fd.get(), static_cast<off_t>(content.total_nbytes)) != 0) fail_write(errno, path);
  if (options.fsync) flush(fd.get(), path);
  close_checked(std::move(fd), path);
}

/// Writes a new file in a directory where files can be created but not renamed.
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

/// Returns whether the error means that the directory or file system does not allow to replace the
/// file, which may still be writable: no right to create files, a mount point, no rename.
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

/// Replaces the file, and returns true. Returns false if that is not possible; the file is then
/// unchanged.
bool replace(const fs::path& path, const std::optional<struct stat>& old,
             const FileContent& content, const WriteOptions& options) {
  // First, so that a failure to open it is reported before the file is replaced.
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
  } else {  // creating a file has succeeded, only the rename failed
    write_under_own_name(target, content, options);
  }
}

}  // namespace safetensors::io

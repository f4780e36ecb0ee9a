#include "io/file_sink.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "io/os_error.hpp"
#include "io/posix/atomic_file.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/posix/detach_mappings.hpp"
#include "io/posix/fd.hpp"
#include "io/temporary_name.hpp"
#include "safetensors/sums.hpp"

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

using BeforeRename = std::function<void(const fs::path& temporary)>;

/// Writes a temporary file that replaces another one.
class ReplacingSink final : public PositionedSink {
 public:
  /// `name` is the path with symbolic links.
  ReplacingSink(const fs::path& target, fs::path name, const std::optional<OldFile>& old,
                BeforeRename before_rename)
      : PositionedSink(target, 0),
        name_(std::move(name)),
        before_rename_(std::move(before_rename)),
        file_(target, old) {}

  void commit(std::uint64_t, bool fsync) override {
    if (before_rename_) before_rename_(file_.path());
    // First, so that a failure to open it is reported before the file is replaced.
    const Fd folder = fsync ? open_folder(path()) : Fd();
    file_.complete(fsync);
    remove_sums(name_);
    if (name_ != path()) remove_sums(path());
    if (const int refusal = file_.take_name()) {
      try {
        fail_write(refusal, path());
      } catch (const Error& error) {
        if (cannot_replace(refusal)) throw CannotReplace(error);
        throw;
      }
    }
    if (folder.is_open()) flush_folder(folder.get(), path());
  }

 private:
  [[nodiscard]] int descriptor() const noexcept override { return file_.descriptor(); }
  void reserve(std::uint64_t size) override {
    io::reserve(file_.descriptor(), 0, size, false, path());
  }

  fs::path name_;
  BeforeRename before_rename_;
  AtomicFile file_;
};

/// Overwrites a file: see make_overwriting_sink().
class OverwritingSink final : public PositionedSink {
 public:
  OverwritingSink(const fs::path& path, bool is_new, const Interrupt& interrupt)
      : PositionedSink(path, 0), file_(this->path()) {
    fd_ = open_for_writing(path, is_new ? O_CREAT | O_EXCL : 0, interrupt);
    file_.is_new = is_new;
    struct stat status{};
    if (::fstat(fd_.get(), &status) != 0) fail_write(errno, path);
    old_nbytes_ = status.st_size;
    if (!is_new) detach_mappings(path, interrupt);
    remove_sums(path);
  }

#if !defined(__linux__)
  void start(std::uint64_t nbytes) override { nbytes_ = nbytes; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    if (content_.size() == 0) content_ = Buffer(static_cast<std::size_t>(nbytes_));
    std::memcpy(content_.data() + offset, bytes.data(), bytes.size());
    return bytes.size();
  }
#endif

  void commit(std::uint64_t nbytes, bool fsync) override {
    const Fd folder = fsync && file_.is_new ? open_folder(path()) : Fd();
    std::span<const std::byte> left = content_.bytes();
    for (std::uint64_t at = 0; !left.empty();) {
      const std::size_t done = PositionedSink::write_at(at, left);
      left = left.subspan(done);
      at += done;
    }
    // Only now: truncating earlier would free the reserved space, and touching the pages would end
    // other processes that have mapped the file.
    if (::ftruncate(fd_.get(), static_cast<off_t>(nbytes)) != 0) fail_write(errno, path());
    if (fsync) flush(fd_.get(), path());
    close_checked(std::move(fd_), path());
    file_.is_new = false;
    if (folder.is_open()) flush_folder(folder.get(), path());
  }

 private:
  /// The destructor removes a new file that commit() has not completed.
  struct Incomplete {
    explicit Incomplete(const fs::path& its_path) : path(its_path) {}
    Incomplete(const Incomplete&) = delete;
    Incomplete& operator=(const Incomplete&) = delete;
    ~Incomplete() {
      if (is_new && process.is_this()) ::unlink(path.c_str());
    }

    const fs::path& path;
    bool is_new = false;
    OwnProcess process;
  };

  [[nodiscard]] int descriptor() const noexcept override { return fd_.get(); }
  void reserve(std::uint64_t size) override {
    // Before anything is overwritten, so that the old content is kept if the disk is full.
    try {
      io::reserve(fd_.get(), 0, size, true, path());
    } catch (const Error&) {
      if (::ftruncate(fd_.get(), old_nbytes_) != 0) {
        // The file keeps the reserved space, which does no harm.
      }
      throw;
    }
  }

  Incomplete file_;  // a member, so that the file is removed also if the constructor throws
  Fd fd_;
  off_t old_nbytes_ = 0;
  [[maybe_unused]] std::uint64_t nbytes_ = 0;
  Buffer content_;  // on systems whose mappings cannot be replaced
};

/// What a path names, before it is written.
struct Found {
  fs::path target;                    ///< the path without symbolic links
  std::optional<struct stat> status;  ///< nothing if no file exists
  bool has_name = true;               ///< whether `target` names the file
};

Found find_target(const fs::path& path) {
  Found found;
  found.status = status_of(path);
  if (found.status && S_ISDIR(found.status->st_mode)) fail_write(EISDIR, path);
  const auto [target, by_kernel_link] = follow_links(path);
  found.target = target;
  found.has_name = !found.status || !by_kernel_link || is_file(*found.status, target);
  return found;
}

bool is_stream(const struct stat& status) {
  return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode);
}

}  // namespace

int remove_file(const fs::path& path) noexcept { return ::unlink(path.c_str()) == 0 ? 0 : errno; }

std::unique_ptr<ByteSink> make_overwriting_sink(const fs::path& path, const Interrupt& interrupt) {
  const Found found = find_target(path);
  // Without a name, through the descriptor that the path names.
  return std::make_unique<OverwritingSink>(found.has_name ? found.target : path,
                                           !found.status.has_value(), interrupt);
}

}  // namespace safetensors::io

namespace safetensors {

std::unique_ptr<ByteSink> make_file_sink(const std::filesystem::path& path,
                                         const std::filesystem::path& rights_of,
                                         const Interrupt& interrupt,
                                         const io::BeforeRename& before_rename) {
  using namespace io;  // NOLINT(google-build-using-namespace): the whole file is its
  check_path(path);
  check_path(rights_of);
  const std::optional<struct stat> status = status_of(path);
  if (status && is_stream(*status)) {
    return std::make_unique<StreamSink>(open_for_writing(path, 0, interrupt), path);
  }
  if (status && !S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode)) {
    fail(ErrorCode::kNotRegularFile, "neither a file nor a pipe", {.path = path});
  }
  const Found found = find_target(path);
  try {
    if (!found.has_name) {
      fail_write(EBUSY, path, "an open file without a name cannot be replaced");
    }
    std::optional<OldFile> old;
    if (found.status) old = {found.target, *found.status};
    if (!rights_of.empty()) {
      if (const auto other = status_of(rights_of)) old = {rights_of, *other};
    }
    return std::make_unique<ReplacingSink>(found.target, path, old, before_rename);
  } catch (const Error& error) {
    if (found.status && cannot_replace(error.os_error())) throw CannotReplace(error);
    throw;
  }
}

}  // namespace safetensors

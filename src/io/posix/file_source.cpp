#include "io/file_source.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <string>

#include "io/os_error.hpp"
#include "io/posix/direct_source.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/mapped_files.hpp"
#include "io/posix/page_cache.hpp"
#include "io/system.hpp"

namespace safetensors {
namespace {

void check_regular(const struct stat& status, const std::filesystem::path& path) {
  if (S_ISREG(status.st_mode)) return;
  if (S_ISDIR(status.st_mode)) io::fail_os(EISDIR, path);
  const char* what = S_ISFIFO(status.st_mode)   ? "a named pipe"
                     : S_ISSOCK(status.st_mode) ? "a socket"
                                                : "a device";
  fail(ErrorCode::kNotRegularFile, std::string("expected a regular file, found ") + what,
       {.path = path});
}

FileId checked_id(const struct stat& status, const std::filesystem::path& path) {
  check_regular(status, path);
#if defined(__APPLE__)
  const struct timespec& modified = status.st_mtimespec;
#else
  const struct timespec& modified = status.st_mtim;
#endif
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  return {.device = static_cast<std::uint64_t>(status.st_dev),
          .file = static_cast<std::uint64_t>(status.st_ino),
          .nbytes = static_cast<std::uint64_t>(status.st_size),
          .modified = std::int64_t{modified.tv_sec} * kNsPerSecond + modified.tv_nsec};
}

FileId checked_id(int fd, const std::filesystem::path& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) io::fail_os(errno, path);
  return checked_id(status, path);
}

/// Deletes a MappedFile, and counts its file as mapped once less.
struct Unmap {
  io::MappedFiles::Slot slot;
  void operator()(const MappedFile* file) const noexcept {
    delete file;
    io::mapped_files().remove(slot);
  }
};

}  // namespace

class FileSource::Handle {
 public:
  explicit Handle(io::Fd fd) noexcept : fd_(std::move(fd)) {}
  [[nodiscard]] int get() const noexcept { return fd_.get(); }

 private:
  io::Fd fd_;
};

FileSource::FileSource(std::unique_ptr<Handle> handle, const std::filesystem::path& path,
                       const FileId& id)
    : handle_(std::move(handle)), path_(path), id_(id) {}

FileSource::~FileSource() = default;

std::unique_ptr<FileSource> FileSource::open(const std::filesystem::path& path) {
  io::check_path(path);
  // Checked before opening: opening a device can have side effects, and a socket cannot be opened.
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) io::fail_os(errno, path);
  check_regular(status, path);
  // If a pipe has taken its place since, O_NONBLOCK avoids waiting for its writer.
  int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  int fd = -1;
  while ((fd = ::open(path.c_str(), flags)) < 0) {
    if (errno == EWOULDBLOCK && (flags & O_NONBLOCK) != 0) {
      // Not a pipe: another program, such as a file server, has a lease on the file. The system has
      // asked it to release the lease, so waiting now ends soon.
      flags &= ~O_NONBLOCK;
    } else if (errno != EINTR) {
      io::fail_os(errno, path);
    }
  }
  auto handle = std::make_unique<Handle>(io::Fd(fd));
  const FileId id = checked_id(fd, path);
  return std::unique_ptr<FileSource>(new FileSource(std::move(handle), path, id));
}

std::unique_ptr<FileSource> FileSource::duplicate(int descriptor,
                                                  const std::filesystem::path& label) {
  const int fd = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) io::fail_os(errno, label);
  auto handle = std::make_unique<Handle>(io::Fd(fd));
  const FileId id = checked_id(fd, label);
  return std::unique_ptr<FileSource>(new FileSource(std::move(handle), label, id));
}

FileId FileSource::find_id(const std::filesystem::path& path) {
  io::check_path(path);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) io::fail_os(errno, path);
  return checked_id(status, path);
}

void FileSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  if (offset > size() || to.size() > size() - offset) {
    fail(ErrorCode::kInvalidArgument, "read past the end of the file", {.path = path_});
  }
  while (!to.empty()) {
    const ssize_t got = ::pread(handle_->get(), to.data(), std::min(to.size(), io::kMaxPerRead),
                                static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      io::fail_os(errno, path_);
    }
    if (got == 0) {
      fail(ErrorCode::kFileChanged,
           "the file was truncated after it was opened, when its size was " +
               std::to_string(size()) + ": it ends at " + std::to_string(offset),
           {.path = path_});
    }
    to = to.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

int FileSource::descriptor() const {
  if (checked_id(handle_->get(), path_) != id_) {
    fail(ErrorCode::kFileChanged, "the file was written to after it was opened", {.path = path_});
  }
  return handle_->get();
}

bool FileSource::is_remote() const noexcept { return io::is_remote(handle_->get()); }

std::uint64_t FileSource::cached_nbytes() const noexcept {
  return io::cached_nbytes(handle_->get(), size());
}

bool FileSource::is_cached(std::uint64_t offset, std::uint64_t nbytes) const noexcept {
  return io::is_cached(handle_->get(), offset, nbytes);
}

unsigned FileSource::concurrency() const noexcept {
  return io::is_half_cached(handle_->get(), size()) ? 0 : kReadersOfSlowFile;
}

std::unique_ptr<ByteSource> FileSource::make_direct(std::unique_ptr<FileSource>& file) {
#if defined(__linux__)
  // By the descriptor, not by the path, which may name another file now.
  const std::string self = "/proc/self/fd/" + std::to_string(file->handle_->get());
  io::Fd direct(::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT));
  if (!direct.is_open()) return nullptr;
  return std::make_unique<io::DirectSource>(std::move(file), std::move(direct));
#else
  (void)file;
  return nullptr;
#endif
}

std::shared_ptr<const MappedFile> FileSource::map() const {
  if (size() > std::numeric_limits<std::size_t>::max()) return nullptr;
  const auto nbytes = static_cast<std::size_t>(size());
  int flags = MAP_PRIVATE;
#if defined(MAP_NORESERVE)
  flags |= MAP_NORESERVE;  // files larger than memory must open: few of their pages are written
#endif
  // Counted before it is mapped, so that no writer in between takes the file for unmapped.
  const io::MappedFiles::Slot slot = io::MappedFiles::slot_of(id_.device, id_.file);
  io::mapped_files().add(slot);
  void* const data = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, handle_->get(), 0);
  if (data == MAP_FAILED) {
    io::mapped_files().remove(slot);
    if (errno == ENOMEM || errno == EAGAIN || errno == ENODEV) return nullptr;
    io::fail_os(errno, path_);
  }
  std::unique_ptr<const MappedFile, Unmap> mapped(nullptr, Unmap{slot});
  try {
    mapped.reset(new MappedFile(static_cast<std::byte*>(data), nbytes));
  } catch (...) {
    ::munmap(data, nbytes);
    io::mapped_files().remove(slot);
    throw;
  }
  return mapped;  // if making the shared_ptr throws, the MappedFile unmaps
}

}  // namespace safetensors

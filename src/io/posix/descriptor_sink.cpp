#include "io/posix/descriptor_sink.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#if defined(__linux__)
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#endif

#include <algorithm>
#include <cerrno>
#include <limits>

#include "io/os_error.hpp"
#include "io/parallel.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/detail/shared_blocks.hpp"

namespace safetensors::io {
namespace {

constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());

#if defined(__linux__)
constexpr std::uint64_t kMaxPerCopy = std::uint64_t{64} << 20;

/// Returns whether the error means that two files cannot be copied in this way.
bool is_unsupported(int os_error) noexcept {
  switch (os_error) {
    case EXDEV:
    case EINVAL:
    case ENOSYS:
    case EOPNOTSUPP:
    case ENOTTY:
    case EPERM:
    case EBADF:
    case ETXTBSY:
      return true;
    default:
      return false;
  }
}
#endif

/// Returns the count of a system call that writes; 0 if a signal interrupted it.
std::size_t checked_count(ssize_t done, const std::filesystem::path& path) {
  if (done > 0) return static_cast<std::size_t>(done);
  // Nothing was written, without an error: repeating the call might never end.
  if (done == 0) fail_write(EIO, path);
  if (errno != EINTR) fail_write(errno, path);
  return 0;
}

/// The sink of make_descriptor_sink() for a regular file.
class DescriptorSink final : public PositionedSink {
 public:
  DescriptorSink(Fd fd, const std::filesystem::path& label, std::uint64_t base, bool is_at_end)
      : PositionedSink(label, base), fd_(std::move(fd)), is_at_end_(is_at_end) {}
  DescriptorSink(const DescriptorSink&) = delete;
  DescriptorSink& operator=(const DescriptorSink&) = delete;
  ~DescriptorSink() override {
    if (is_committed_ || !is_at_end_ || !process_.is_this()) return;
    if (::ftruncate(fd_.get(), static_cast<off_t>(base())) != 0) {
      // The file keeps a part, whose header has a length of 0.
    }
  }

  void commit(std::uint64_t nbytes, bool fsync) override {
    if (fsync) flush(fd_.get(), path());
    const auto end = static_cast<off_t>(base() + nbytes);
    if (::lseek(fd_.get(), end, SEEK_SET) < 0) fail_write(errno, path());
    is_committed_ = true;
  }

 private:
  [[nodiscard]] int descriptor() const noexcept override { return fd_.get(); }
  void reserve(std::uint64_t size) override { io::reserve(fd_.get(), base(), size, true, path()); }

  Fd fd_;
  bool is_at_end_;
  bool is_committed_ = false;
  OwnProcess process_;
};

}  // namespace

std::size_t PositionedSink::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  reserve_once();
  const ssize_t done = ::pwrite(descriptor(), bytes.data(), bytes.size(), position_of(offset));
  return checked_count(done, path_);
}

off_t PositionedSink::position_of(std::uint64_t offset) const {
  if (offset > kMaxOffset - base_) fail_write(EFBIG, path_);
  return static_cast<off_t>(base_ + offset);
}

void PositionedSink::reserve_once() {
  // Not after blocks were shared: reserving would take space for those, too.
  if (!is_reserved_.exchange(true) && !has_cloned_) reserve(nbytes_);
}

std::uint64_t PositionedSink::copy_from(const ByteSource& source, std::uint64_t begin,
                                        std::uint64_t nbytes, std::uint64_t offset) {
#if defined(__linux__)
  const int from = source.descriptor();
  if (from < 0) return 0;
  off_t out = position_of(offset);
  detail::SharedBlocks shared;
  if (can_clone_) shared = detail::shared_blocks(begin, nbytes, static_cast<std::uint64_t>(out));
  std::uint64_t done = 0;
  if (shared.nbytes != 0 && shared.skip == 0) done = clone(from, begin, shared.nbytes, out);
  if (done == 0) {
    if (!can_clone_) reserve_once();
    // Up to the first whole block only, if what follows can be shared.
    if (shared.skip != 0) nbytes = shared.skip;
    auto in = static_cast<off_t>(begin);
    const auto wanted = static_cast<std::size_t>(std::min(nbytes, kMaxPerCopy));
    const ssize_t copied = ::copy_file_range(from, &in, descriptor(), &out, wanted, 0);
    if (copied < 0 && !is_unsupported(errno)) {
      if (errno == EINTR) return 0;
      fail_write(errno, path_);
    }
    done = copied > 0 ? static_cast<std::uint64_t>(copied) : 0;
  }
  (void)source.descriptor();  // throws if the source has changed
  return done;
#else
  (void)source;
  (void)begin;
  (void)nbytes;
  (void)offset;
  return 0;
#endif
}

/// Shares whole blocks with another file. Returns how many bytes are shared; 0 if the file system
/// cannot do it.
std::uint64_t PositionedSink::clone(int from, std::uint64_t begin, std::uint64_t nbytes, off_t to) {
#if defined(__linux__)
  file_clone_range range{};
  range.src_fd = from;
  range.src_offset = begin;
  range.src_length = nbytes;
  range.dest_offset = static_cast<std::uint64_t>(to);
  while (::ioctl(descriptor(), FICLONERANGE, &range) != 0) {
    if (errno == EINTR) continue;
    if (!is_unsupported(errno)) fail_write(errno, path_);
    can_clone_ = false;
    return 0;
  }
  has_cloned_ = true;
  return nbytes;
#else
  (void)from;
  (void)begin;
  (void)nbytes;
  (void)to;
  return 0;
#endif
}

bool PositionedSink::shift(std::uint64_t nbytes, std::uint64_t by) {
#if defined(__linux__)
  // ext4 and XFS insert blocks without moving data.
  if (::fallocate(descriptor(), FALLOC_FL_INSERT_RANGE, static_cast<off_t>(base_),
                  static_cast<off_t>(by)) == 0) {
    return true;
  }
#endif
  // From the end, so that nothing is overwritten before it was copied.
  const Buffer buffer(static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, kTaskSize)));
  while (nbytes != 0) {
    std::span<std::byte> chunk = buffer.bytes().first(
        static_cast<std::size_t>(std::min<std::uint64_t>(nbytes, buffer.size())));
    nbytes -= chunk.size();
    const std::span<std::byte> whole = chunk;
    for (std::uint64_t at = base_ + nbytes; !chunk.empty();) {
      const ssize_t got = ::pread(descriptor(), chunk.data(), chunk.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EBADF) return false;  // not open for reading
      if (got <= 0) fail_write(got < 0 ? errno : EIO, path_);
      chunk = chunk.subspan(static_cast<std::size_t>(got));
      at += static_cast<std::uint64_t>(got);
    }
    std::span<const std::byte> left = whole;
    for (std::uint64_t at = nbytes + by; !left.empty();) {
      const std::size_t done = write_at(at, left);
      left = left.subspan(done);
      at += done;
    }
  }
  return true;
}

std::size_t StreamSink::write_at(std::uint64_t, std::span<const std::byte> bytes) {
  return checked_count(::write(fd_.get(), bytes.data(), bytes.size()), path_);
}

void flush(int fd, const std::filesystem::path& path) {
#if defined(F_FULLFSYNC)
  if (::fcntl(fd, F_FULLFSYNC) == 0) return;  // macOS: fsync alone stops at the drive's cache
#endif
  while (::fsync(fd) != 0) {
    if (errno != EINTR) fail_write(errno, path);
  }
}

void reserve(int fd, std::uint64_t begin, std::uint64_t nbytes, bool keep_size,
             const std::filesystem::path& path) {
#if defined(__linux__)
  // Not posix_fallocate, which glibc emulates by writing to every block. Reserving fails early on a
  // full disk, and avoids the flush with which ext4 delays a rename (delayed allocation).
  if (nbytes == 0) return;
  if (nbytes > kMaxOffset - begin) fail_write(EFBIG, path);
  const int mode = keep_size ? FALLOC_FL_KEEP_SIZE : 0;
  while (::fallocate(fd, mode, static_cast<off_t>(begin), static_cast<off_t>(nbytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail_write(errno, path);
    return;  // not supported: the writes report errors
  }
#else
  (void)fd;
  (void)begin;
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

namespace safetensors {

std::unique_ptr<ByteSink> make_descriptor_sink(int descriptor, const std::filesystem::path& label) {
  io::Fd fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!fd.is_open()) io::fail_write(errno, label);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  struct stat status{};
  if (flags < 0 || ::fstat(fd.get(), &status) != 0) io::fail_write(errno, label);
  const off_t at = ::lseek(fd.get(), 0, SEEK_CUR);
  // pwrite() appends to a file that was opened to append, whatever its offset.
  if (!S_ISREG(status.st_mode) || (flags & O_APPEND) != 0 || at < 0) {
    return std::make_unique<io::StreamSink>(std::move(fd), label);
  }
  return std::make_unique<io::DescriptorSink>(std::move(fd), label, static_cast<std::uint64_t>(at),
                                              status.st_size <= at);
}

}  // namespace safetensors

#include "io/posix/overwriting_sink.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>

#include "base/parse_integer.hpp"
#include "io/file_sink.hpp"
#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/posix/detach_mappings.hpp"
#include "io/posix/procfs.hpp"
#include "safetensors/sums.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;
using detail::Folder;
using detail::OwnPlace;

/// Opens the file of a place to overwrite it, or makes it. Throws: Error kIo.
Fd open_to_overwrite(const Place& place, const fs::path& typed, const Interrupt& interrupt) {
  // Without a name, through the descriptor that the path names.
  if (!place.has_name) return open_for_writing(typed, 0, interrupt);
  const OwnPlace& file = *place.file;
  int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  if (!place.status) flags |= O_CREAT | O_EXCL;
  while (true) {
    Fd fd(::openat(file.folder.descriptor(), file.name.c_str(), flags, 0666));
    if (fd.is_open()) return fd;
    const bool waits = (flags & O_NONBLOCK) == 0;
    if (errno == EWOULDBLOCK && !waits) {  // a lease, whose holder is now told to give it up
      const std::optional<struct stat> found = status_at(file);
      if (!found || !place.status || !is_same_file(*found, *place.status)) {
        fail_write(ESTALE, typed);
      }
      flags &= ~O_NONBLOCK;
    } else if (errno != EINTR) {
      fail_write(errno, typed);
    }
    if (interrupt) interrupt();
  }
}

/// Returns whether this process has the file open to write to it.
bool is_open_for_writing(const struct stat& file) noexcept try {
  const Folder open_files = Folder::open("/dev/fd");
  return std::ranges::any_of(open_files.names(), [&](const std::string& name) {
    const std::optional<unsigned> fd = parse_integer<unsigned>(name);
    struct stat found{};
    if (!fd || ::fstat(static_cast<int>(*fd), &found) != 0 || !is_same_file(found, file)) {
      return false;
    }
    const int flags = ::fcntl(static_cast<int>(*fd), F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  });
} catch (const std::exception&) {
  return false;
}

/// Overwrites a file: see make_overwriting_sink(). The header's length is written last, so that no
/// reader takes a part for a file.
class OverwritingSink final : public PositionedSink {
 public:
  OverwritingSink(Place place, const fs::path& typed, const Interrupt& interrupt,
                  BeforeRename before_commit = {})
      : PositionedSink(place.has_name ? place.path() : typed, 0),
        file_(std::move(place)),
        before_commit_(std::move(before_commit)) {
    fd_ = open_to_overwrite(file_.place, typed, interrupt);
    file_.is_new = !file_.place.status;
    struct stat status{};
    if (::fstat(fd_.get(), &status) != 0) fail_write(errno, path());
    if (file_.place.status && !is_same_file(status, *file_.place.status)) {
      fail_write(ESTALE, path(), "another program replaced the file as it was opened");
    }
    old_nbytes_ = status.st_size;
    if (old_nbytes_ != 0) detach_mappings(fd_.get(), path(), interrupt);
    if (file_.place.file) remove_sums(*file_.place.file);
    if (!file_.place.has_name) safetensors::remove_sums(path());
  }
  OverwritingSink(const OverwritingSink&) = delete;
  OverwritingSink& operator=(const OverwritingSink&) = delete;
  ~OverwritingSink() override {
    if (old_nbytes_ != 0 || !fd_.is_open() || !file_.process.is_this()) return;
    if (::ftruncate(fd_.get(), 0) != 0) {
      // The file keeps a part, whose header has a length of 0.
    }
  }

  /// Locks the file, so that of two saves to one file only one writes into it.
  [[nodiscard]] bool try_lock() noexcept {
    return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    if (offset < length_.size()) {
      const std::size_t count = std::min(bytes.size(), length_.size() - offset);
      std::memcpy(length_.data() + offset, bytes.data(), count);
      return count;
    }
#if defined(__linux__)
    invalidate();
    return PositionedSink::write_at(offset, bytes);
#else
    if (content_.size() == 0) content_ = Buffer(static_cast<std::size_t>(nbytes_));
    std::memcpy(content_.data() + offset, bytes.data(), bytes.size());
    return bytes.size();
#endif
  }
#if !defined(__linux__)
  void start(std::uint64_t nbytes) override { nbytes_ = nbytes; }
#endif

  [[nodiscard]] std::uint64_t copy_from(const ByteSource& source, std::uint64_t begin,
                                        std::uint64_t nbytes, std::uint64_t offset) override {
    invalidate();
    return PositionedSink::copy_from(source, begin, nbytes, offset);
  }

  void commit(std::uint64_t nbytes, bool fsync) override {
    invalidate();
    if (content_.size() > length_.size()) {
      write_all_at(length_.size(), content_.bytes().subspan(length_.size()));
    }
    // Only now: truncating earlier would free the reserved space, and touching the pages would end
    // other processes that have mapped the file.
    if (::ftruncate(fd_.get(), static_cast<off_t>(nbytes)) != 0) fail_write(errno, path());
    write_all_at(0, std::span(length_).first(std::min<std::uint64_t>(nbytes, length_.size())));
    if (before_commit_) before_commit_(readable_path(fd_.get(), path()));
    if (fsync) flush(fd_.get(), path());
    close_checked(std::move(fd_), path());
    const bool was_new = std::exchange(file_.is_new, false);
    if (fsync && was_new) naming(path(), [&] { file_.place.file->folder.flush(); });
  }

 private:
  /// Makes the old file one that does not open.
  void invalidate() {
    if (old_nbytes_ == 0 || is_invalid_.exchange(true)) return;
    write_all_at(0, std::array<std::byte, 8>{});
  }
  void write_all_at(std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t done = PositionedSink::write_at(offset, bytes);
      bytes = bytes.subspan(done);
      offset += done;
    }
  }

  /// The destructor removes a new file that commit() has not completed.
  struct Incomplete {
    explicit Incomplete(Place its_place) : place(std::move(its_place)) {}
    Incomplete(const Incomplete&) = delete;
    Incomplete& operator=(const Incomplete&) = delete;
    ~Incomplete() {
      if (!is_new || !process.is_this()) return;
      (void)::unlinkat(place.file->folder.descriptor(), place.file->name.c_str(), 0);
    }

    Place place;
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
  std::atomic<bool> is_invalid_{false};  // several threads may write
  std::array<std::byte, 8> length_{};
  BeforeRename before_commit_;
  [[maybe_unused]] std::uint64_t nbytes_ = 0;
  Buffer content_;  // on systems whose mappings cannot be replaced
};

}  // namespace

Fd open_for_writing(const fs::path& path, int flags, const Interrupt& interrupt) {
  while (true) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666));
    if (fd.is_open()) return fd;
    if (errno != EINTR) fail_write(errno, path);
    if (interrupt) interrupt();  // open() blocks until a pipe has a reader
  }
}

bool is_empty_and_held(const Place& place) noexcept {
  return place.status && S_ISREG(place.status->st_mode) && place.status->st_size == 0 &&
         (place.is_descriptor || is_open_for_writing(*place.status));
}

std::unique_ptr<ByteSink> fill(const Place& place, const fs::path& typed,
                               const Interrupt& interrupt, const BeforeRename& before_commit) {
  auto sink = std::make_unique<OverwritingSink>(place, typed, interrupt, before_commit);
  if (!sink->try_lock()) return nullptr;
  return sink;
}

bool names_open_file(const fs::path& path) {
  const std::string& text = path.native();
  if (!text.starts_with("/proc/") && !text.starts_with("/dev/")) return false;
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) return false;
  const Place place = resolve(path);
  return place.is_descriptor && place.status && S_ISREG(place.status->st_mode);
}

std::unique_ptr<ByteSink> make_overwriting_sink(const fs::path& path, const Interrupt& interrupt) {
  return std::make_unique<OverwritingSink>(resolve(path), path, interrupt);
}

}  // namespace safetensors::io

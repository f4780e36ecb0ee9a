#include "io/posix/held_file.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"

namespace safetensors::io {
namespace {

struct stat held_status(int descriptor, const std::filesystem::path& path) {
  struct stat found{};
  if (::fstat(descriptor, &found) != 0) fail_os(errno, path);
  return found;
}

}  // namespace

std::optional<HeldFile> HeldFile::open(const detail::Folder& folder, const detail::OwnName& name,
                                       Access access) {
  Fd fd(folder.open_file(name, access.writes, access.owned));
  if (!fd.is_open()) return std::nullopt;
  return HeldFile(std::move(fd), folder.path() / name.text());
}

int HeldFile::lock() const noexcept {
  return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

std::uint64_t HeldFile::size() const {
  return static_cast<std::uint64_t>(held_status(fd_.get(), path_).st_size);
}

std::uint64_t HeldFile::name_count() const { return held_status(fd_.get(), path_).st_nlink; }

std::size_t HeldFile::read_some(std::uint64_t offset, std::span<std::byte> to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t count =
        ::pread(fd_.get(), to.data() + done, std::min(to.size() - done, kMaxPerRead),
                static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_os(errno, path_);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

std::string HeldFile::read(std::uint64_t most) const {
  std::string text(static_cast<std::size_t>(std::min(size(), most)), '\0');
  text.resize(read_some(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void HeldFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  if (read_some(offset, to) != to.size()) {
    fail(ErrorCode::kFileChanged, "the file has become shorter", {.path = path_});
  }
}

void HeldFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pwrite(fd_.get(), bytes.data() + done, std::min(bytes.size() - done, kMaxPerRead),
                 static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_write(count == 0 ? EIO : errno, path_);
    done += static_cast<std::size_t>(count);
  }
}

void HeldFile::clear() const {
  while (::ftruncate(fd_.get(), 0) != 0) {
    if (errno != EINTR) fail_write(errno, path_);
  }
}

void HeldFile::flush() const { io::flush(fd_.get(), path_); }

void flush_file(const detail::Folder& folder, const detail::OwnName& name) {
  const auto file = HeldFile::open(folder, name, {.writes = false, .owned = false});
  if (!file) fail_write(ENOENT, folder.path() / name.text());
  file->flush();
}

}  // namespace safetensors::io

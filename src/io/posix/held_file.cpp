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

bool HeldFile::is_removed() const { return held_status(fd_.get(), path_).st_nlink == 0; }

std::string HeldFile::read(std::uint64_t most) const {
  std::string text(static_cast<std::size_t>(std::min(size(), most)), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::pread(fd_.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_os(errno, path_);
    if (count == 0) break;  // it became shorter
    done += static_cast<std::size_t>(count);
  }
  text.resize(done);
  return text;
}

void HeldFile::fill(std::string_view text) const {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::pwrite(fd_.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
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

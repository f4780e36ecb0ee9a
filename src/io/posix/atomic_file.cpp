#include "io/posix/atomic_file.hpp"

#include <fcntl.h>
#if defined(__linux__)
#include <sys/xattr.h>
#endif

#include <cerrno>
#include <utility>
#include <vector>

#include "io/os_error.hpp"
#include "io/posix/stream_writer.hpp"
#include "io/temporary_name.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 100;

#if defined(__linux__)
/// Copies the POSIX access list, if the old file has one; false when it could not be kept.
bool copy_access_list(const fs::path& from, int to) {
  constexpr const char* kAttribute = "system.posix_acl_access";
  const ssize_t size = ::getxattr(from.c_str(), kAttribute, nullptr, 0);
  if (size == 0 || (size < 0 && (errno == ENODATA || errno == ENOTSUP))) return true;
  if (size < 0) return false;
  std::vector<char> list(static_cast<std::size_t>(size));
  const ssize_t got = ::getxattr(from.c_str(), kAttribute, list.data(), list.size());
  return got > 0 && ::fsetxattr(to, kAttribute, list.data(), static_cast<std::size_t>(got), 0) == 0;
}
#else
bool copy_access_list(const fs::path&, int) { return true; }
#endif

}  // namespace

AtomicFile::AtomicFile(const fs::path& target, const std::optional<struct stat>& old)
    : target_(target) {
  // A new file gets its mode from the umask. A replacement starts closed to others: the old file
  // may have been private.
  const mode_t mode = old ? 0600 : 0666;
  for (int i = 0; !fd_.is_open(); ++i) {
    fs::path name = temporary_name(target);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno != EINTR && (errno != EEXIST || i == kTries)) fail_write(errno, target);
    fd_ = Fd(fd);
    if (fd_.is_open()) temporary_.path = std::move(name);
  }
  if (old) take_over(*old);
}

AtomicFile::Temporary::~Temporary() {
  if (!path.empty()) ::unlink(path.c_str());
}

void AtomicFile::take_over(const struct stat& old) {
  mode_t mode = old.st_mode & 07777;
  struct stat now{};
  if (::fstat(fd_.get(), &now) != 0) return;
  const bool same_owner = (now.st_uid == old.st_uid && now.st_gid == old.st_gid) ||
                          ::fchown(fd_.get(), old.st_uid, old.st_gid) == 0;
  // Rights that were given to another owner or group must not go to ours.
  if (!same_owner) mode &= ~static_cast<mode_t>(S_ISUID | S_ISGID);
  // With an access list the group bits are its mask: without the list they would grant too much.
  if (!copy_access_list(target_, fd_.get())) mode &= ~static_cast<mode_t>(S_IRWXG);
  // Best effort: some file systems have no modes.
  (void)::fchmod(fd_.get(), mode);
}

void AtomicFile::complete(bool fsync) {
  if (fsync) flush(fd_.get(), target_);
  close_checked(std::move(fd_), target_);
}

int AtomicFile::take_name() noexcept {
  if (::rename(temporary_.path.c_str(), target_.c_str()) != 0) return errno;
  temporary_.path.clear();
  return 0;
}

}  // namespace safetensors::io

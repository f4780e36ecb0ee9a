#include "io/posix/atomic_file.hpp"

#include <fcntl.h>
#if defined(__linux__)
#include <sys/xattr.h>
#endif

#include <cerrno>
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
  if (size <= 0) return true;
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
    temporary_ = temporary_name(target);
    const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno != EINTR && (errno != EEXIST || i == kTries)) fail_write(errno, target);
    fd_ = Fd(fd);
  }
  if (old) take_over(*old);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
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

void AtomicFile::reserve(std::uint64_t nbytes) {
#if defined(__linux__)
  // The call itself, not posix_fallocate: glibc emulates that by writing to every block.
  // Besides failing early on a full disk it spares ext4 the flush at rename (delayed allocation).
  if (nbytes == 0) return;
  while (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(nbytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail_write(errno, target_);
    return;  // not supported here: the writes will tell
  }
#else
  (void)nbytes;
#endif
}

void AtomicFile::commit(bool fsync) {
  if (fsync) flush(fd_.get(), target_);
  close_checked(std::move(fd_), target_);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_write(errno, target_);
  temporary_.clear();
  if (!fsync) return;
  const Fd folder(::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // The file is whole and in place; some file systems cannot flush folders.
  if (folder.is_open()) (void)::fsync(folder.get());
}

}  // namespace safetensors::io

#include "io/posix/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#if defined(__linux__)
#include <sys/xattr.h>
#endif

#include <cerrno>
#include <utility>
#include <vector>

#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/temporary_name.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 100;

#if defined(__linux__)
constexpr const char* kAccessList = "system.posix_acl_access";

/// Returns the POSIX access list of a file: empty if it has none, nothing if the system does not
/// say.
std::optional<std::vector<char>> access_list_of(const fs::path& path) {
  const ssize_t size = ::getxattr(path.c_str(), kAccessList, nullptr, 0);
  if (size < 0 && errno != ENODATA && errno != ENOTSUP) return std::nullopt;
  if (size <= 0) return std::vector<char>();
  std::vector<char> list(static_cast<std::size_t>(size));
  const ssize_t got = ::getxattr(path.c_str(), kAccessList, list.data(), list.size());
  if (got <= 0) return std::nullopt;
  list.resize(static_cast<std::size_t>(got));
  return list;
}

/// Gives `to` the access list of `from`, or none if `from` has none. Returns whether that
/// succeeded. Without `same_group` it fails for a list, whose entry for the owning group would then
/// apply to another group.
bool take_access_list(const fs::path& from, int to, bool same_group) {
  const std::optional<std::vector<char>> list = access_list_of(from);
  if (!list) return false;
  if (list->empty()) {  // the new file may have the default list of the directory
    return ::fremovexattr(to, kAccessList) == 0 || errno == ENODATA || errno == ENOTSUP;
  }
  return same_group && ::fsetxattr(to, kAccessList, list->data(), list->size(), 0) == 0;
}
#else
bool take_access_list(const fs::path&, int, bool) { return true; }
#endif

/// Returns the mode with only those rights for group and others that both of them had.
mode_t with_common_rights(mode_t mode) noexcept {
  const mode_t common = (mode >> 3) & mode & 07U;
  return (mode & 07700U) | (common << 3) | common;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target, const std::optional<OldFile>& old)
    : target_(target) {
  // A new file gets its mode from the umask. A replacement is at first accessible to its owner
  // only, as the old file may have been private.
  const mode_t mode = old ? 0600 : 0666;
  for (int i = 0; !fd_.is_open(); ++i) {
    fs::path name = temporary_name(target);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno != EINTR && (errno != EEXIST || i == kTries)) fail_write(errno, target);
    fd_ = Fd(fd);
    if (fd_.is_open()) temporary_.path = std::move(name);
  }
  (void)::flock(fd_.get(), LOCK_EX | LOCK_NB);  // best effort: some file systems have no locks
  if (old) take_over(*old);
}

AtomicFile::Temporary::~Temporary() {
  if (!path.empty() && process.is_this()) ::unlink(path.c_str());
}

void AtomicFile::take_over(const OldFile& from) {
  const struct stat& old = from.status;
  struct stat now{};
  if (::fstat(fd_.get(), &now) != 0) return;  // the file stays accessible to its owner only
  constexpr auto kSameUser = static_cast<uid_t>(-1);
  constexpr auto kSameGroup = static_cast<gid_t>(-1);
  // First the group alone: many users may not change the owner of a file, but may choose the group
  // of a file that they own.
  const bool same_group =
      now.st_gid == old.st_gid || ::fchown(fd_.get(), kSameUser, old.st_gid) == 0;
  const bool same_owner =
      now.st_uid == old.st_uid || ::fchown(fd_.get(), old.st_uid, kSameGroup) == 0;
  // Nobody may get a right that they lacked. If the group differs, a user who now has the rights of
  // the group, or of others, had one of the two before.
  mode_t mode = old.st_mode & 07777U;
  if (!same_owner || !same_group) mode &= ~static_cast<mode_t>(S_ISUID | S_ISGID);
  if (!same_group) mode = with_common_rights(mode);
  // A list that was not copied may have denied rights that the mode grants.
  if (!take_access_list(from.path, fd_.get(), same_group)) mode &= 07700U;
  // Last, as it gives others access to the file. Best effort: some file systems have no modes.
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

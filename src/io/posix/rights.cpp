#include "io/posix/rights.hpp"

#if defined(__linux__)
#include <sys/xattr.h>
#endif
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <vector>

namespace safetensors::io {
namespace {

#if defined(__linux__)
constexpr const char* kAccessList = "system.posix_acl_access";

/// Returns the POSIX access list of a file: empty if it has none, nothing if the system does not
/// say.
///
/// Opening the file could break a lease, or be forbidden. The path leads through the folder's
/// descriptor; without /proc, through the folder's path.
std::optional<std::vector<char>> access_list_of(const detail::OwnPlace& place) {
  std::string path = "/proc/self/fd/" + std::to_string(place.folder.descriptor()) + "/";
  path += place.name.text();
  ssize_t size = ::lgetxattr(path.c_str(), kAccessList, nullptr, 0);
  if (size < 0 && errno == ENOENT) {
    path = (place.folder.path() / place.name.text()).native();
    size = ::lgetxattr(path.c_str(), kAccessList, nullptr, 0);
  }
  if (size < 0 && errno != ENODATA && errno != ENOTSUP) return std::nullopt;
  if (size <= 0) return std::vector<char>();
  std::vector<char> list(static_cast<std::size_t>(size));
  const ssize_t got = ::lgetxattr(path.c_str(), kAccessList, list.data(), list.size());
  if (got <= 0) return std::nullopt;
  list.resize(static_cast<std::size_t>(got));
  return list;
}

/// Gives `to` the access list of `from`, or none if `from` has none. Returns whether that
/// succeeded. Without `same_group` it fails for a list, whose entry for the owning group would then
/// apply to another group.
bool take_access_list(const detail::OwnPlace& from, int to, bool same_group) {
  const std::optional<std::vector<char>> list = access_list_of(from);
  if (!list) return false;
  if (list->empty()) {  // the new file may have the default list of the directory
    return ::fremovexattr(to, kAccessList) == 0 || errno == ENODATA || errno == ENOTSUP;
  }
  return same_group && ::fsetxattr(to, kAccessList, list->data(), list->size(), 0) == 0;
}
#else
bool take_access_list(const detail::OwnPlace&, int, bool) { return true; }
#endif

/// Returns the mode with only those rights for group and others that both of them had.
mode_t with_common_rights(mode_t mode) noexcept {
  const mode_t common = (mode >> 3) & mode & 07U;
  return (mode & 07700U) | (common << 3) | common;
}

}  // namespace

void take_over(int descriptor, const OldFile& from) noexcept try {
  const struct stat& old = from.status;
  struct stat now{};
  if (::fstat(descriptor, &now) != 0) return;  // the file stays accessible to its owner only
  constexpr auto kSameUser = static_cast<uid_t>(-1);
  constexpr auto kSameGroup = static_cast<gid_t>(-1);
  // First the group alone: many users may not change the owner of a file, but may choose the group
  // of a file that they own.
  const bool same_group =
      now.st_gid == old.st_gid || ::fchown(descriptor, kSameUser, old.st_gid) == 0;
  const bool same_owner =
      now.st_uid == old.st_uid || ::fchown(descriptor, old.st_uid, kSameGroup) == 0;
  // Nobody may get a right that they lacked. If the group differs, a user who now has the rights of
  // the group, or of others, had one of the two before.
  mode_t mode = old.st_mode & 07777U;
  if (!same_owner || !same_group) mode &= ~static_cast<mode_t>(S_ISUID | S_ISGID);
  if (!same_group) mode = with_common_rights(mode);
  // A list that was not copied may have denied rights that the mode grants.
  if (!take_access_list(from.place, descriptor, same_group)) mode &= 07700U;
  // Last, as it gives others access to the file. Best effort: some file systems have no modes.
  (void)::fchmod(descriptor, mode);
  // NOLINTNEXTLINE(bugprone-empty-catch): the file stays accessible to its owner only
} catch (const std::bad_alloc&) {
}

std::string user_name(std::uint32_t user) {
  std::vector<char> room(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, room.data(), room.size(), &found) == 0 && found != nullptr) {
    return found->pw_name;
  }
  return std::to_string(user);
}

}  // namespace safetensors::io

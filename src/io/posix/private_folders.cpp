#include "safetensors/detail/private_folders.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string>
#include <utility>

#include "io/posix/fd.hpp"
#include "io/posix/own_file.hpp"
#include "safetensors/error.hpp"

namespace safetensors::detail {
namespace {

constexpr std::time_t kSecondsUntilStale = 60;

/// Returns whether a file was removed while a process has it open, on NFS.
bool is_removed_on_nfs(std::string_view name) {
  constexpr std::string_view kStart = ".nfs";
  return name.size() > kStart.size() && name.starts_with(kStart) &&
         name.find_first_not_of("0123456789abcdef", kStart.size()) == std::string_view::npos;
}

std::optional<std::uint32_t> other_owner(const OwnPlace& place) {
  const std::optional<struct stat> found = io::status_at(place);
  const bool is_private =
      found && S_ISDIR(found->st_mode) && (found->st_mode & (S_IRWXG | S_IRWXO)) == 0;
  if (!is_private || found->st_uid == ::geteuid()) return std::nullopt;
  return found->st_uid;
}

/// NFS shows other machines the locks of files, but not those of folders.
bool is_locked(const Folder& room, const OwnName& name) {
  const io::Fd fd(room.open_file(name, true, true));
  return fd.is_open() && !io::try_lock(fd.get());
}

}  // namespace

PrivateFolders private_folders(const Folder& folder, std::string_view kind,
                               const std::function<bool(const OwnName::Text&)>& is_wanted,
                               const std::function<bool(const OwnName::Text&)>& is_part) {
  PrivateFolders result;
  std::vector<OwnName::Text> names = folder.names();
  std::ranges::sort(names);
  for (const OwnName::Text& each : names) {
    const OwnName::Text stem(OwnName::stem_in(each, kind));
    if (stem.empty() || !is_wanted(stem)) continue;
    const OwnName name(each);
    std::optional<Folder> found;
    try {
      found = folder.open_private(name);
    } catch (const Error& error) {
      const int number = error.os_error();
      if (number != 0 && number != EPERM && number != EACCES) throw;
      result.foreign.push_back({stem, each, other_owner({folder, name})});
      continue;
    }
    if (!found) continue;  // its process has completed
    const bool is_one = std::ranges::all_of(found->names(), [&](const OwnName::Text& file) {
      return is_part(file) || is_removed_on_nfs(file);
    });
    if (is_one) {
      result.left.push_back({stem, {std::move(*found), name}});
    } else {
      result.foreign.push_back({stem, each, std::nullopt});
    }
  }
  return result;
}

bool is_used(const Folder& room) {
  if (!room.sees_all_locks()) {
    struct stat found{};
    if (::fstat(room.descriptor(), &found) != 0) io::fail_os(errno, room.path());
    if (found.st_mtime >= std::time(nullptr) - kSecondsUntilStale) return true;
  }
  if (!io::try_lock(room.descriptor())) return true;
  return std::ranges::any_of(
      room.names(), [&](const OwnName::Text& name) { return is_locked(room, OwnName(name)); });
}

void show_complete(const Folder& room, bool is_complete) noexcept {
  (void)::fchmod(room.descriptor(), is_complete ? S_IRWXU | S_ISVTX : S_IRWXU);
}

}  // namespace safetensors::detail

#include "io/posix/own_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/posix/procfs.hpp"
#include "io/temporary_name.hpp"
#include "safetensors/error.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;
using detail::Folder;
using detail::OwnName;
using detail::OwnPlace;

constexpr int kTries = 100;
constexpr int kMaxLinks = 40;  // as in Linux

/// Makes a file that did not exist. What lies under the name is neither followed nor opened.
/// Returns a descriptor, or one that is not open with errno set.
///
/// A replacement is at first accessible to its owner only, as the old file may have been private.
Fd create(const OwnPlace& place, bool is_private) noexcept {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  while (true) {
    Fd fd(
        ::openat(place.folder.descriptor(), place.name.c_str(), kFlags, is_private ? 0600 : 0666));
    if (fd.is_open() || errno != EINTR) return fd;
  }
}

/// A path in two parts, as text.
struct Split {
  std::string folder;  ///< empty for the working directory
  std::string name;
};

Split split(const std::string& path) {
  const std::size_t begin = path.rfind('/') + 1;  // npos + 1 is 0
  std::string folder = path.substr(0, begin);
  // Without separators at its end: when memory is short, libstdc++ 12 damages a path that ends in
  // one as a name is appended to it.
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return {std::move(folder), path.substr(begin)};
}

/// Returns the text of a link; nothing if the name leads to no link.
std::optional<std::string> read_link(const OwnPlace& place, const fs::path& typed) {
  for (std::size_t room = 256;; room *= 4) {
    std::string text(room, '\0');
    const ssize_t size =
        ::readlinkat(place.folder.descriptor(), place.name.c_str(), text.data(), text.size());
    if (size < 0) {
      // Not a link, no file, or a file system without links.
      if (errno == EINVAL || errno == ENOENT || errno == ENOSYS || errno == ENOTSUP) return {};
      fail_write(errno, typed);
    }
    if (static_cast<std::size_t>(size) == room) continue;
    text.resize(static_cast<std::size_t>(size));
    return text;
  }
}

/// Raises for a stranger's link in a folder in which others may make links: it does not choose
/// which file is written.
void refuse_strangers_link(const OwnPlace& link, const fs::path& typed) {
  struct stat folder{};
  if (::fstat(link.folder.descriptor(), &folder) != 0) fail_write(errno, typed);
  if ((folder.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  const std::optional<struct stat> found = status_at(link);
  if (!found || found->st_uid == ::geteuid() || found->st_uid == folder.st_uid) return;
  fail_write(EACCES, typed,
             "a symbolic link of another user, " + user_name(found->st_uid) +
                 ", in a folder that others may write to");
}

/// Returns the number of the mount that an open file is in; empty if the system does not say.
std::string mount_of(int descriptor) {
  const std::string path = "/proc/self/fdinfo/" + std::to_string(descriptor);
  const std::optional<std::string> text = read_kernel_file(path.c_str());
  for (std::string_view rest = text ? *text : std::string_view(); !rest.empty();) {
    if (next_token(rest) == "mnt_id:") return std::string(next_token(rest));
  }
  return {};
}

/// The same of what a name leads to, which may be a link.
std::string mount_at(const OwnPlace& place) {
#if defined(__linux__)
  const Fd fd(
      ::openat(place.folder.descriptor(), place.name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  return fd.is_open() ? mount_of(fd.get()) : std::string();
#else
  (void)place;
  return {};
#endif
}

/// Returns whether the link is in /proc, such as /proc/self/fd/3. The kernel follows such a link to
/// an open file, which the link's text need not name: the file may have been removed, or something
/// mounted over it.
bool is_kernel_link(const OwnPlace& link) {
#if defined(__linux__)
  struct statfs system{};
  return ::fstatfs(link.folder.descriptor(), &system) == 0 &&
         static_cast<std::uint32_t>(system.f_type) == PROC_SUPER_MAGIC;
#else
  (void)link;
  return false;
#endif
}

/// Returns the place of a path from a folder on; nothing if it names a folder, as by "" or "..".
std::optional<OwnPlace> place_of(const Folder* from, const std::string& path) {
  const auto [folder, name] = split(path);
  if (name.empty() || name == "." || name == "..") return std::nullopt;
  if (from == nullptr || (!folder.empty() && folder.front() == '/')) {
    return OwnPlace{Folder::open(folder), OwnName(name)};
  }
  if (folder.empty()) return OwnPlace{*from, OwnName(name)};
  return OwnPlace{from->open_from(folder), OwnName(name)};
}

/// Returns whether a link leads to a blob in the cache of the Hugging Face Hub.
///
///     models--org--name/snapshots/<commit>/model.safetensors -> ../../blobs/<SHA-1 or SHA-256>
bool leads_to_blob(const fs::path& text) {
  const std::string name = text.filename().native();
  return (name.size() == 40 || name.size() == 64) && text.parent_path().filename() == "blobs" &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Returns the error of a path that must name a file but ends as the path of a folder does.
[[noreturn]] void fail_folder(const fs::path& typed) {
  struct stat found{};
  if (::stat(typed.c_str(), &found) != 0) fail_write(errno, typed);
  fail_write(S_ISDIR(found.st_mode) ? EISDIR : ENOTDIR, typed);
}

}  // namespace

std::optional<struct stat> status_at(const OwnPlace& place) {
  struct stat found{};
  if (::fstatat(place.folder.descriptor(), place.name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
    return found;
  }
  if (errno == ENOENT) return std::nullopt;
  fail_write(errno, place.folder.path() / place.name.text());
}

void check_replaceable(const Folder& folder, const std::set<std::string>& names) {
  struct stat status{};
  if (::fstat(folder.descriptor(), &status) != 0) fail_write(errno, folder.path());
  const ::uid_t user = ::geteuid();
  const bool has_any_owner = (status.st_mode & S_ISVTX) == 0 || user == 0 || status.st_uid == user;
  const std::string mount = mount_of(folder.descriptor());
  for (const std::string& name : names) {
    const OwnPlace place{folder, OwnName(name)};
    const std::optional<struct stat> found = status_at(place);
    if (!found) continue;
    const fs::path path = folder.path() / name;
    if (S_ISDIR(found->st_mode)) fail_write(EISDIR, path);
    if (!has_any_owner && found->st_uid != user) {
      fail_write(EPERM, path,
                 "it belongs to user " + user_name(found->st_uid) +
                     ", and its folder lets users replace only their own files");
    }
    const std::string own = mount.empty() ? mount : mount_at(place);
    if (!own.empty() && own != mount) {
      fail_write(EBUSY, path, "it is a mount point, which cannot be replaced");
    }
  }
}

bool try_lock(int descriptor) noexcept {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat found{};
  return ::fstat(descriptor, &found) != 0 || found.st_nlink != 0;
}

void remove_empty_folder(const fs::path& path) noexcept { (void)::rmdir(path.c_str()); }

OwnFile OwnFile::make(OwnPlace place, const std::optional<OldFile>& old) {
  const fs::path path = place.folder.path() / place.name.text();
  const bool is_shared = naming(path, [&] { return place.folder.is_shared(); });
  Fd fd = create(place, old.has_value());
  if (!fd.is_open()) fail_write(errno, path);
  (void)try_lock(fd.get());
  return {std::move(place), std::move(fd), is_shared, old};
}

OwnFile OwnFile::make_temporary(const OwnPlace& target, const std::optional<OldFile>& old) {
  const fs::path path = target.folder.path() / target.name.text();
  const bool is_shared = naming(path, [&] { return target.folder.is_shared(); });
  for (int i = 0;; ++i) {
    OwnPlace place{target.folder, temporary_name(target.name)};
    Fd fd = create(place, old.has_value());
    if (!fd.is_open()) {
      if (errno != EEXIST || i == kTries) fail_write(errno, path);
      continue;
    }
    if (try_lock(fd.get()) || i == kTries) {
      return {std::move(place), std::move(fd), is_shared, old};
    }
    // Another save has just taken it for one that was left. The destructor removes it.
    const OwnFile taken(std::move(place), std::move(fd), is_shared, std::nullopt);
  }
}

OwnFile::OwnFile(OwnPlace place, Fd fd, bool is_shared, const std::optional<OldFile>& old)
    : place_(std::move(place)), fd_(std::move(fd)), is_shared_(is_shared) {
  if (old) take_over(fd_.get(), *old);
}

OwnFile::OwnFile(OwnFile&& other) noexcept
    : place_(std::move(other.place_)),
      fd_(std::move(other.fd_)),
      held_(std::move(other.held_)),
      is_shared_(other.is_shared_),
      has_name_(std::exchange(other.has_name_, false)) {}

OwnFile::~OwnFile() {
  if (!has_name_ || !process_.is_this()) return;
  if (is_shared_ && !is_at(place_)) return;
  (void)::unlinkat(place_.folder.descriptor(), place_.name.c_str(), 0);
}

bool OwnFile::is_at(const OwnPlace& place) const noexcept {
  struct stat held{};
  struct stat there{};
  return ::fstat((fd_.is_open() ? fd_ : held_).get(), &held) == 0 &&
         ::fstatat(place.folder.descriptor(), place.name.c_str(), &there, AT_SYMLINK_NOFOLLOW) ==
             0 &&
         is_same_file(held, there);
}

fs::path readable_path(int descriptor, const fs::path& path) {
#if defined(__linux__)
  std::string opened = "/proc/self/fd/" + std::to_string(descriptor);
  if (::access(opened.c_str(), F_OK) == 0) return opened;
#else
  (void)descriptor;
#endif
  return path;
}

void OwnFile::complete(bool fsync, const fs::path& label) {
  if (fsync) flush(fd_.get(), label);
  held_ = Fd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (held_.is_open()) {
    close_checked(std::move(fd_), label);
    return;
  }
  // No descriptor is left. This says, as close() does, what could not be written.
  if (!fsync) flush(fd_.get(), label);
  held_ = std::move(fd_);
}

void OwnFile::keep() noexcept {
  has_name_ = false;
  held_ = Fd();
}

int OwnFile::take_name(const OwnPlace& target) noexcept {
  // Before: the old file is not given up for what is not ours.
  if (is_shared_ && !is_at(place_)) return ESTALE;
  if (::renameat(place_.folder.descriptor(), place_.name.c_str(), target.folder.descriptor(),
                 target.name.c_str()) != 0) {
    return errno;
  }
  has_name_ = false;
  // After: between the first check and the renaming, the name can have changed.
  return is_shared_ && !is_at(target) ? ESTALE : 0;
}

fs::path Place::path() const { return file->folder.path() / file->name.text(); }

Place resolve(const fs::path& typed) {
  check_path(typed);
  if (typed.empty()) fail_write(ENOENT, typed);
  std::optional<OwnPlace> at = naming(typed, [&] { return place_of(nullptr, typed.native()); });
  std::optional<struct stat> opened;  // what a link of /proc leads to
  for (int i = 0; i < kMaxLinks; ++i) {
    if (!at) fail_folder(typed);
    const std::optional<std::string> text = read_link(*at, typed);
    if (!text) {
      const std::optional<struct stat> found = status_at(*at);
      const bool has_name = !opened || (found && is_same_file(*found, *opened));
      const std::optional<struct stat>& status = opened ? opened : found;
      if (status && S_ISDIR(status->st_mode)) fail_write(EISDIR, typed);
      return {std::make_shared<const OwnPlace>(std::move(*at)), status, has_name,
              opened.has_value()};
    }
    refuse_strangers_link(*at, typed);
    struct stat found{};
    if (!opened && is_kernel_link(*at) &&
        ::fstatat(at->folder.descriptor(), at->name.c_str(), &found, 0) == 0) {
      opened = found;
    }
    std::optional<OwnPlace> next;
    try {
      next = place_of(&at->folder, *text);
    } catch (const Error& error) {
      if (opened) return {nullptr, opened, false, true};
      fail_write(error.os_error(), typed);
    }
    if (!opened && next && leads_to_blob(*text)) {
      Place link;
      link.file = std::make_shared<const OwnPlace>(std::move(*at));
      link.blob = std::make_shared<const OwnPlace>(std::move(*next));
      return link;
    }
    at = std::move(next);
  }
  fail_write(ELOOP, typed);
}

}  // namespace safetensors::io

#include "safetensors/detail/folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/own_file.hpp"
#include "io/posix/rights.hpp"
#include "safetensors/error.hpp"

namespace safetensors::detail {
namespace {

namespace fs = std::filesystem;
using io::Fd;

constexpr int kTries = 100;
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

/// Opens a path, and repeats that if a signal interrupts it.
Fd open_at(int folder, const char* path, int flags) {
  while (true) {
    Fd fd(::openat(folder, path, flags | O_CLOEXEC));
    if (fd.is_open() || errno != EINTR) return fd;
  }
}

/// Opens a folder. The result is not open if that is not possible; errno says why.
Fd open_folder_at(int folder, const char* path) {
  Fd fd = open_at(folder, path, O_RDONLY | O_DIRECTORY);
#if defined(O_PATH)
  // A user may be allowed to create files in a folder but not to read it.
  if (!fd.is_open() && errno == EACCES) fd = open_at(folder, path, O_PATH | O_DIRECTORY);
#endif
  return fd;
}

struct stat status_of(int descriptor, const fs::path& path) {
  struct stat found{};
  if (::fstat(descriptor, &found) != 0) io::fail_write(errno, path);
  return found;
}

[[noreturn]] void refuse(const fs::path& path, const std::string& reason, int os_error = 0) {
  fail(os_error == 0 ? ErrorCode::kNotRegularFile : ErrorCode::kIo,
       reason + ", so it is not followed", {.path = path, .os_error = os_error});
}

void refuse_other_user(const fs::path& path, uid_t user) {
  if (user == ::geteuid()) return;
  refuse(path, "it belongs to another user, " + io::user_name(user), EPERM);
}

struct CloseFolder {
  void operator()(DIR* list) const noexcept { ::closedir(list); }
};

}  // namespace

class Folder::Handle {
 public:
  Handle(Fd fd, fs::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  Fd fd_;
  fs::path path_;
};

Folder::Folder(std::shared_ptr<const Handle> handle) noexcept : handle_(std::move(handle)) {}

Folder Folder::open(const fs::path& typed) {
  io::check_path(typed);
  Fd fd = open_folder_at(AT_FDCWD, typed.empty() ? "." : typed.c_str());
  if (!fd.is_open()) io::fail_os(errno, typed);
  return Folder(std::make_shared<const Handle>(std::move(fd), typed));
}

Folder Folder::open_from(const fs::path& relative) const {
  Fd fd = open_folder_at(descriptor(), relative.c_str());
  if (!fd.is_open()) io::fail_write(errno, path() / relative);
  return Folder(std::make_shared<const Handle>(std::move(fd), path() / relative));
}

const fs::path& Folder::path() const noexcept { return handle_->path(); }
int Folder::descriptor() const noexcept { return handle_->fd(); }
std::uint64_t Folder::inode() const { return status_of(descriptor(), path()).st_ino; }

bool Folder::is_shared() const {
  const struct stat found = status_of(descriptor(), path());
  if (found.st_uid != ::geteuid() && found.st_uid != 0) return true;
  // An access list shows as rights of the group. In a sticky folder only the owner of a file, of
  // the folder, or root, may rename and remove it.
  return (found.st_mode & S_ISVTX) == 0 && (found.st_mode & kOthersWrite) != 0;
}

std::optional<Folder::Status> Folder::status(const OwnName& name) const {
  const std::optional<struct stat> found = io::status_at({*this, name});
  if (!found) return std::nullopt;
#if defined(__APPLE__)
  const timespec& time = found->st_mtimespec;
#else
  const timespec& time = found->st_mtim;
#endif
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  return Status{static_cast<std::uint64_t>(found->st_size),
                static_cast<std::int64_t>(time.tv_sec) * kPerSecond + time.tv_nsec, found->st_ino,
                S_ISDIR(found->st_mode)};
}

/// Calls the function with each name until it returns false.
void Folder::visit(const std::function<bool(const char*)>& visitor) const {
  Fd fd = open_at(descriptor(), ".", O_RDONLY | O_DIRECTORY);
  if (!fd.is_open()) io::fail_os(errno, path());
  const std::unique_ptr<DIR, CloseFolder> list(::fdopendir(fd.get()));
  if (!list) io::fail_os(errno, path());
  (void)fd.release();
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(list.get());
    if (entry == nullptr && errno != 0) io::fail_os(errno, path());
    if (entry == nullptr) return;
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && !visitor(entry->d_name)) return;
  }
}

std::vector<OwnName::Text> Folder::names() const {
  std::vector<OwnName::Text> names;
  visit([&](const char* name) {
    names.emplace_back(name);
    return true;
  });
  return names;
}

int Folder::open_file(const OwnName& name, bool writes, bool owned) const {
  const fs::path file = path() / name.text();
  // Read and write: NFS locks only files that are open for writing.
  Fd fd = open_at(descriptor(), name.c_str(),
                  (writes ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (!fd.is_open()) {
    if (errno == ENOENT) return -1;
    if (errno == ELOOP || errno == EMLINK) refuse(file, "it is a symbolic link");
    if (errno == EISDIR || errno == ENXIO) refuse(file, "it is not a regular file");
    io::fail_os(errno, file);
  }
  const struct stat found = status_of(fd.get(), file);
  if (!S_ISREG(found.st_mode)) refuse(file, "it is not a regular file");
  if (owned) refuse_other_user(file, found.st_uid);
  return fd.release();
}

void Folder::resize(const OwnName& name, std::uint64_t nbytes) const {
  const fs::path file = path() / name.text();
  const Fd fd(open_file(name, true, true));
  if (!fd.is_open()) io::fail_write(ENOENT, file);
  io::reserve(fd.get(), 0, nbytes, false, file);
  while (::ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
    if (errno != EINTR) io::fail_write(errno, file);
  }
}

bool Folder::remove(const OwnName& name, int file) const {
  if (file >= 0) {
    const std::optional<struct stat> there = io::status_at({*this, name});
    const struct stat held = status_of(file, path() / name.text());
    if (!there || !io::is_same_file(*there, held)) return false;
  }
  if (::unlinkat(descriptor(), name.c_str(), 0) == 0) return true;
  if (errno == ENOENT) return false;
  io::fail_write(errno, path() / name.text());
}

void Folder::flush() const {
  while (::fsync(descriptor()) != 0) {
    if (errno == EINVAL || errno == EBADF || errno == ENOTSUP || errno == ENOSYS) return;
    if (errno != EINTR) io::fail_write(errno, path());
  }
}

OwnPlace Folder::make_private(const OwnName::Text& named, std::string_view kind) const {
  for (int i = 0;; ++i) {
    OwnName name = OwnName::random(named, kind);
    if (::mkdirat(descriptor(), name.c_str(), S_IRWXU) != 0) {
      if (errno == EEXIST && i < kTries) continue;
      io::fail_write(errno, path() / name.text());
    }
    std::optional<Folder> made;
    try {
      std::optional<Folder> found = open_private(name);
      // It may be some folder of this user that another one has put there, to be filled and
      // emptied.
      if (found && !found->names().empty()) refuse(path() / name.text(), "it is not empty");
      made = std::move(found);
    } catch (const Error&) {  // what another user has put there
      if (i == kTries || !is_shared()) throw;
    }
    // Else a recovery, which took it for one that was left, removes it.
    if (made && io::try_lock(made->descriptor())) return {std::move(*made), std::move(name)};
    if (i == kTries) io::fail_write(ENOENT, path() / name.text());
  }
}

std::optional<Folder> Folder::open_private(const OwnName& name, std::uint64_t inode) const {
  fs::path folder = path() / name.text();
  Fd fd = open_at(descriptor(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!fd.is_open()) {
    if (errno == ENOENT) return std::nullopt;
    const int os_error = errno;
    struct stat found{};
    if (::fstatat(descriptor(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
      refuse_other_user(folder, found.st_uid);
      if (!S_ISDIR(found.st_mode)) refuse(folder, "it is not a folder");
    }
    io::fail_os(os_error, folder);
  }
  const struct stat found = status_of(fd.get(), folder);
  refuse_other_user(folder, found.st_uid);
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse(folder, "it is open to other users");
  if (inode != 0 && found.st_ino != inode) refuse(folder, "it is another folder than was expected");
  return Folder(std::make_shared<const Handle>(std::move(fd), std::move(folder)));
}

void Folder::remove_private(const OwnName& name, const Folder& held) const noexcept try {
  for (const OwnName::Text& file : held.names()) {
    (void)::unlinkat(held.descriptor(), file.c_str(), 0);
  }
  (void)::unlinkat(descriptor(), name.c_str(), AT_REMOVEDIR);
  // NOLINTNEXTLINE(bugprone-empty-catch): what is left can be removed later
} catch (const std::exception&) {
}

bool Folder::remove_empty(const OwnName& name) const noexcept {
  return ::unlinkat(descriptor(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

void Folder::take_rights(const OwnName& name, const OwnPlace& like) const {
  const std::optional<struct stat> old = io::status_at(like);
  if (!old || !S_ISREG(old->st_mode)) return;
  const Fd fd(open_file(name, false, true));
  if (!fd.is_open()) io::fail_write(ENOENT, path() / name.text());
  io::take_over(fd.get(), {like, *old});
}

void Folder::move(const OwnName& name, const OwnPlace& to) const {
  const fs::path target = to.folder.path() / to.name.text();
#if defined(O_PATH)
  constexpr int kHold = O_PATH | O_NOFOLLOW;
#else
  constexpr int kHold = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
#endif
  Fd held;
  if (to.folder.is_shared()) {
    held = open_at(descriptor(), name.c_str(), kHold);
    if (!held.is_open()) io::fail_write(errno, path() / name.text());
  }
  if (::renameat(descriptor(), name.c_str(), to.folder.descriptor(), to.name.c_str()) != 0) {
    io::fail_write(errno, target);
  }
  if (!held.is_open()) return;
  const std::optional<struct stat> there = io::status_at(to);
  if (!there || !io::is_same_file(*there, status_of(held.get(), target))) {
    io::fail_write(ESTALE, target, "another user replaced the file as it was saved");
  }
}

}  // namespace safetensors::detail

// A file that this process makes under a name of its own, and the place of a typed path.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "io/os_error.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/rights.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/error.hpp"

namespace safetensors::io {

/// Returns the status of what a name leads to, which may be a link; nothing if there is nothing.
/// Throws: Error kIo.
[[nodiscard]] std::optional<struct stat> status_at(const detail::OwnPlace& place);

/// Throws if the system would not replace or remove what one of the names leads to. A name may lead
/// to nothing.
///
/// Throws: Error kNotRegularFile for a folder; Error kIo with EBUSY for a mount point, and with
///   EPERM for a file of another user in a folder whose sticky bit keeps others from removing it.
void check_replaceable(const detail::Folder& folder, const std::set<std::string>& names);

[[nodiscard]] inline bool is_same_file(const struct stat& a, const struct stat& b) noexcept {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Locks a file or folder that this process has just made, until it is closed, so that others see
/// that it is in use. Returns false if a recovery was first, which then removes it. A file system
/// without locks is no reason to fail.
[[nodiscard]] bool try_lock(int descriptor) noexcept;

/// Removes a folder that this process has made, if it is empty.
void remove_empty_folder(const std::filesystem::path& path) noexcept;

/// Removes what killed saves of the file have left, as Folder::remove_stale(), before it is saved
/// again. Takes a hundredth of the time at most: in a large folder it does nothing at most calls.
void remove_stale_of(const detail::OwnPlace& target) noexcept;

/// Returns a path by which this process can open an open file to read it: `path` if it has no
/// other.
[[nodiscard]] std::filesystem::path readable_path(int descriptor,
                                                  const std::filesystem::path& path);

/// Calls a function whose errors name a folder. Names `path`, a file in it, in them instead.
template <typename Function>
auto naming(const std::filesystem::path& path, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    if (error.os_error() == 0) throw;
    fail_write(error.os_error(), path);
  }
}

/// A new file. The destructor removes it, unless it was kept or got its final name.
///
/// In a folder where another user may rename and remove files, a name may lead to something else
/// than the file that was made under it. So the file stays open, and its name is compared with it
/// before it is renamed, after it, and before it is removed: an inode's number alone may belong to
/// another file as soon as no descriptor holds it.
class OwnFile {
 public:
  /// Makes the file under its name, or with a random name for that target, and locks it until it
  /// has its final name: see try_lock(). With `old`, it gets the rights of that file; without,
  /// those of the umask. Throws: Error kIo.
  static OwnFile make(detail::OwnPlace place, const std::optional<OldFile>& old);
  static OwnFile make_temporary(const detail::OwnPlace& target, const std::optional<OldFile>& old);

  OwnFile(OwnFile&& other) noexcept;
  OwnFile& operator=(OwnFile&&) = delete;
  ~OwnFile();

  [[nodiscard]] int descriptor() const noexcept { return fd_.get(); }
  [[nodiscard]] std::filesystem::path readable_path() const {
    return io::readable_path(fd_.get(), place_.folder.path() / place_.name.text());
  }
  /// Flushes the file if `fsync`, and closes it, but for a descriptor that holds the lock. `label`
  /// names it in errors. Throws: Error kIo.
  void complete(bool fsync, const std::filesystem::path& label);
  /// Leaves the file under the name that it has, and closes it.
  void keep() noexcept;
  /// Renames the complete file, replacing what has that name. Returns 0, or the errno. ESTALE:
  /// another user has put something else under one of the names.
  [[nodiscard]] int take_name(const detail::OwnPlace& target) noexcept;
  /// Returns whether a name leads to the file.
  [[nodiscard]] bool is_at(const detail::OwnPlace& place) const noexcept;

 private:
  OwnFile(detail::OwnPlace place, Fd fd, bool is_shared, const std::optional<OldFile>& old);

  detail::OwnPlace place_;
  Fd fd_;
  Fd held_;  // after complete()
  bool is_shared_;
  bool has_name_ = true;
  OwnProcess process_;
};

/// What a path that the caller typed leads to.
struct Place {
  /// Where its file is or will be. Nothing if the path leads to an open file whose folder is gone.
  std::shared_ptr<const detail::OwnPlace> file;
  /// Of the file; nothing if there is none.
  std::optional<struct stat> status;
  /// False for an open file that its name does not lead to, by a path such as /proc/self/fd/3.
  bool has_name = true;
  /// True for such a path, also if the file has a name.
  bool is_descriptor = false;
  /// The file whose rights a new one gets, if `file` is a link that is replaced.
  std::shared_ptr<const detail::OwnPlace> blob = nullptr;

  [[nodiscard]] std::filesystem::path path() const;  ///< without symbolic links; requires `file`
};

/// Follows the symbolic links of a typed path, each by the descriptor of its folder, also if
/// nothing exists at their end: saving through a link replaces what it names, not the link.
/// A link to a blob in the cache of the Hugging Face Hub is not followed, but is itself the file to
/// replace: other revisions of a model share the blob, whose name is the digest of its bytes.
///
/// As Linux does in sticky folders (fs.protected_symlinks), a link is refused in every folder that
/// others may write to, unless it belongs to this user or to the owner of the folder.
/// Throws: Error kIo; kNotRegularFile for a folder.
[[nodiscard]] Place resolve(const std::filesystem::path& typed);

}  // namespace safetensors::io

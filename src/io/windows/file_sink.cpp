#include "io/file_sink.hpp"

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/os_error.hpp"
#include "io/windows/atomic_file.hpp"
#include "io/windows/descriptor_sink.hpp"
#include "io/windows/handle.hpp"
#include "io/windows/open_file.hpp"
#include "safetensors/detail/folder.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

/// Returns FILE_ATTRIBUTE_... flags; nothing if there is no file.
std::optional<DWORD> attributes_of(const fs::path& path) {
  const DWORD attributes = ::GetFileAttributesW(system_path(path).c_str());
  if (attributes != INVALID_FILE_ATTRIBUTES) return attributes;
  const int os_error = last_errno();
  if (os_error == ENOENT) return std::nullopt;
  fail_write(os_error, path);
}

/// Returns the path that a link leads to: saving through a link replaces what it names, not the
/// link. Throws Error kIo for a link that leads nowhere.
fs::path follow_links(const fs::path& path) {
  const std::optional<DWORD> attributes = attributes_of(path);
  if (!attributes || (*attributes & FILE_ATTRIBUTE_REPARSE_POINT) == 0) return path;
  const Handle file = open_file(path, FILE_READ_ATTRIBUTES, kShareAll, OPEN_EXISTING,
                                FILE_FLAG_BACKUP_SEMANTICS);  // needed to open directories
  if (!file.is_open()) fail_write(last_errno(), path);
  std::wstring target;
  DWORD length = MAX_PATH;
  while (length > target.size()) {
    target.resize(length);
    length = ::GetFinalPathNameByHandleW(file.get(), target.data(), length, 0);
  }
  target.resize(length);
  return length == 0 ? path : fs::path(target);
}

/// What a path names, before it is written.
struct Found {
  fs::path target;  ///< the path without links
  bool exists = false;
};

Found find_target(const fs::path& path) {
  Found found = {.target = follow_links(path)};
  const std::optional<DWORD> old = attributes_of(found.target);
  if (old && (*old & FILE_ATTRIBUTE_DIRECTORY) != 0) fail_write(EISDIR, path);
  if (old && (*old & FILE_ATTRIBUTE_READONLY) != 0) fail_write(EACCES, path);
  found.exists = old.has_value();
  return found;
}

Handle open_for_writing(const fs::path& path, DWORD access, DWORD disposition) {
  Handle file = open_file(path, access, kShareAll, disposition);
  if (!file.is_open()) fail_write(open_errno(path), path);
  return file;
}

bool is_held(DWORD error) noexcept {
  return error == ERROR_SHARING_VIOLATION || error == ERROR_USER_MAPPED_FILE;
}

/// Throws Error kIo for an error of replacing or writing an existing file.
[[noreturn]] void fail_replace(DWORD error, const fs::path& path) {
  if (!is_held(error)) fail_write(errno_of(error), path);
  fail_write(EACCES, path, "the file is open or mapped elsewhere");
}

/// Returns whether the error means that the directory or file system does not allow to replace the
/// file, which may still be writable.
bool cannot_replace(int os_error) noexcept {
  switch (os_error) {
    case EACCES:
    case EROFS:
    case EXDEV:
    case ENOSYS:
    case ENOTSUP:
      return true;
    default:
      return false;
  }
}

using BeforeRename = std::function<void(const fs::path& temporary)>;

/// Writes a temporary file that replaces another one.
class ReplacingSink final : public PositionedSink {
 public:
  /// `outdated` are the files whose sums do not describe them any more.
  ReplacingSink(const fs::path& target, const std::optional<fs::path>& old,
                std::vector<FileWithSums> outdated, BeforeRename before_rename)
      : PositionedSink(target, 0),
        outdated_(std::move(outdated)),
        before_rename_(std::move(before_rename)),
        file_(target, old) {}

  void commit(std::uint64_t, bool fsync) override {
    if (before_rename_) before_rename_(file_.path());
    for (const FileWithSums& each : outdated_) remove_sums(each);
    const DWORD refusal = file_.commit(fsync);
    if (refusal == ERROR_SUCCESS) {
      for (const FileWithSums& each : outdated_) remove_late_sums(each);
      return;
    }
    try {
      fail_replace(refusal, path());
    } catch (const Error& error) {
      // A program that has the file open does not expect it to change, so it is not overwritten
      // either.
      if (!is_held(refusal) && cannot_replace(error.os_error())) throw CannotReplace(error);
      throw;
    }
  }

 private:
  [[nodiscard]] HANDLE handle() const noexcept override { return file_.handle(); }
  void reserve(std::uint64_t nbytes) override {
    if (nbytes != 0) file_.reserve(nbytes);
  }

  std::vector<FileWithSums> outdated_;
  BeforeRename before_rename_;
  AtomicFile file_;
};

/// Overwrites a file: see make_overwriting_sink().
class OverwritingSink final : public PositionedSink {
 public:
  OverwritingSink(const fs::path& path, bool exists)
      : PositionedSink(path, 0),
        // DELETE is needed to remove a new file that was not completed.
        handle_(open_for_writing(path, GENERIC_READ | GENERIC_WRITE | (exists ? 0 : DELETE),
                                 exists ? OPEN_EXISTING : CREATE_NEW)),
        is_incomplete_(!exists) {
    // The system refuses this while the file is mapped, so no tensor loses its pages.
    if (::SetEndOfFile(handle_.get()) == 0) fail_replace(::GetLastError(), path);
    remove_sums(path);
  }
  OverwritingSink(const OverwritingSink&) = delete;
  OverwritingSink& operator=(const OverwritingSink&) = delete;
  ~OverwritingSink() override {
    if (!is_incomplete_) return;
    FILE_DISPOSITION_INFO info{};
    info.DeleteFile = TRUE;
    (void)::SetFileInformationByHandle(handle_.get(), FileDispositionInfo, &info, sizeof info);
  }

  void commit(std::uint64_t, bool fsync) override {
    if (fsync) flush(handle_.get(), path());
    is_incomplete_ = false;
  }

 private:
  [[nodiscard]] HANDLE handle() const noexcept override { return handle_.get(); }

  Handle handle_;
  bool is_incomplete_;  // a new file that commit() has not completed
};

}  // namespace

int remove_file(const fs::path& path) noexcept {
  return ::DeleteFileW(system_path(path).c_str()) != 0 ? 0 : last_errno();
}

bool names_open_file(const fs::path&) { return false; }

std::unique_ptr<ByteSink> make_overwriting_sink(const fs::path& path, const Interrupt&) {
  const Found found = find_target(path);
  return std::make_unique<OverwritingSink>(found.target, found.exists);
}

}  // namespace safetensors::io

namespace safetensors {

std::unique_ptr<ByteSink> make_file_sink(const std::filesystem::path& path,
                                         const std::filesystem::path& rights_of, const Interrupt&,
                                         const io::BeforeRename& before_rename) {
  using namespace io;  // NOLINT(google-build-using-namespace): the whole file is its
  check_path(path);
  check_path(rights_of);
  if (path.empty()) fail_write(ENOENT, path);  // the system would refuse it after all is written
  if (names_device(path)) {
    Handle stream = open_for_writing(path, GENERIC_WRITE, OPEN_EXISTING);
    if (::GetFileType(stream.get()) == FILE_TYPE_DISK) {  // such as a whole drive
      fail(ErrorCode::kNotRegularFile, "neither a file nor a pipe", {.path = path});
    }
    return std::make_unique<StreamSink>(std::move(stream), path);
  }
  const Found found = find_target(path);
  std::optional<std::filesystem::path> old;
  if (found.exists) old = found.target;
  if (!rights_of.empty() && attributes_of(rights_of)) old = rights_of;
  std::vector<FileWithSums> outdated = {path};
  if (found.target != path) outdated.push_back(found.target);
  try {
    return std::make_unique<ReplacingSink>(found.target, old, std::move(outdated), before_rename);
  } catch (const Error& error) {
    if (found.exists && cannot_replace(error.os_error())) throw CannotReplace(error);
    throw;
  }
}

/// Holds the folder open. Without FILE_SHARE_DELETE nobody can rename it, so paths below it stay.
class detail::Folder::Handle {
 public:
  explicit Handle(std::filesystem::path path)
      : path_(std::move(path)),
        handle_(io::open_file(path_.empty() ? L"." : path_, FILE_LIST_DIRECTORY,
                              FILE_SHARE_READ | FILE_SHARE_WRITE, OPEN_EXISTING,
                              FILE_FLAG_BACKUP_SEMANTICS)) {
    if (!handle_.is_open()) io::fail_write(io::last_errno(), path_);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  io::Handle handle_;
};

detail::Folder::Folder(std::shared_ptr<const Handle> handle) noexcept
    : handle_(std::move(handle)) {}

detail::Folder detail::Folder::open(const std::filesystem::path& typed) {
  io::check_path(typed);
  return Folder(std::make_shared<const Handle>(typed));
}

const std::filesystem::path& detail::Folder::path() const noexcept { return handle_->path(); }

namespace {

/// Keeps the folder as it is while a file in it is written.
class OwnSink final : public ByteSink {
 public:
  OwnSink(const detail::OwnPlace& place, const std::optional<std::filesystem::path>& old,
          std::function<bool()> is_wanted)
      : folder_(place.folder),
        is_wanted_(std::move(is_wanted)),
        sink_(folder_.path() / place.name.text(), old, std::vector<io::FileWithSums>(), {}) {}

  [[nodiscard]] bool seeks() const noexcept override { return sink_.seeks(); }
  void start(std::uint64_t nbytes) override { sink_.start(nbytes); }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    return sink_.write_at(offset, bytes);
  }
  void commit(std::uint64_t nbytes, bool fsync) override {
    if (!is_wanted_ || is_wanted_()) sink_.commit(nbytes, fsync);
  }

 private:
  detail::Folder folder_;
  std::function<bool()> is_wanted_;
  io::ReplacingSink sink_;
};

}  // namespace

std::unique_ptr<ByteSink> detail::make_own_sink(const OwnPlace& place, const OwnPlace* like,
                                                const std::function<bool()>& is_wanted) {
  // A link under the name is replaced: the renaming does not follow it.
  std::optional<std::filesystem::path> old;
  if (like != nullptr) {
    std::filesystem::path file = like->folder.path() / like->name.text();
    if (io::attributes_of(file)) old = io::follow_links(file);
  }
  return std::make_unique<OwnSink>(place, old, is_wanted);
}

}  // namespace safetensors

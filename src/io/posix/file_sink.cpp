#include "io/file_sink.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/os_error.hpp"
#include "io/posix/descriptor_sink.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/overwriting_sink.hpp"
#include "io/posix/own_file.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;
using detail::OwnPlace;

/// Returns whether the error means that the directory or file system does not allow to replace the
/// file, which may still be writable: no right to create files, a mount point, no rename.
bool cannot_replace(int os_error) noexcept {
  switch (os_error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case EBUSY:
    case EXDEV:
    case ENOSYS:
    case ENOTSUP:
#if EOPNOTSUPP != ENOTSUP
    case EOPNOTSUPP:
#endif
      return true;
    default:
      return false;
  }
}

using IsWanted = std::function<bool()>;

/// The base of the sinks that write a new file.
class NewFileSink : public PositionedSink {
 protected:
  NewFileSink(const fs::path& label, OwnFile file)
      : PositionedSink(label, 0), file_(std::move(file)) {}

  [[nodiscard]] OwnFile& file() noexcept { return file_; }
  [[nodiscard]] int descriptor() const noexcept override { return file_.descriptor(); }
  void reserve(std::uint64_t size) override {
    io::reserve(file_.descriptor(), 0, size, false, path());
  }

 private:
  OwnFile file_;
};

/// Writes a temporary file that replaces another one.
class ReplacingSink final : public NewFileSink {
 public:
  /// `outdated` are the files whose sums do not describe them any more. `is_wanted` is as for
  /// make_own_sink().
  ReplacingSink(OwnPlace target, const std::optional<OldFile>& old,
                std::vector<FileWithSums> outdated, BeforeRename before_rename,
                IsWanted is_wanted = {})
      : NewFileSink(target.folder.path() / target.name.text(),
                    OwnFile::make_temporary(target, old)),
        target_(std::move(target)),
        outdated_(std::move(outdated)),
        before_rename_(std::move(before_rename)),
        is_wanted_(std::move(is_wanted)) {}

  void commit(std::uint64_t, bool fsync) override {
    if (before_rename_) before_rename_(file().readable_path());
    file().complete(fsync, path());
    if (is_wanted_ && !is_wanted_()) return;
    for (const FileWithSums& each : outdated_) remove_sums(each);
    if (const int refusal = file().take_name(target_)) {
      const char* const why =
          refusal == ESTALE ? "another user replaced the file as it was saved" : "";
      try {
        fail_write(refusal, path(), why);
      } catch (const Error& error) {
        if (cannot_replace(refusal)) throw CannotReplace(error);
        throw;
      }
    }
    if (!outdated_.empty() && file().is_at(target_)) {
      for (const FileWithSums& each : outdated_) remove_late_sums(each);
    }
    if (is_wanted_ && !is_wanted_() && file().is_at(target_)) {
      (void)::unlinkat(target_.folder.descriptor(), target_.name.c_str(), 0);
    }
    file().keep();
    if (fsync) naming(path(), [&] { target_.folder.flush(); });
  }

 private:
  OwnPlace target_;
  std::vector<FileWithSums> outdated_;
  BeforeRename before_rename_;
  IsWanted is_wanted_;
};

/// Writes a new file under its own name: see make_part_sink().
class PartSink final : public NewFileSink {
 public:
  PartSink(const OwnPlace& place, const std::optional<OldFile>& old, BeforeRename before_commit)
      : NewFileSink(place.folder.path() / place.name.text(), OwnFile::make(place, old)),
        before_commit_(std::move(before_commit)) {}

  /// Its name is none that the caller knows.
  [[nodiscard]] fs::path label() const override { return {}; }

  void commit(std::uint64_t, bool fsync) override {
    if (before_commit_) before_commit_(file().readable_path());
    file().complete(fsync, path());
    file().keep();
  }

 private:
  BeforeRename before_commit_;
};

bool is_stream(const struct stat& status) {
  return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode);
}

}  // namespace

int remove_file(const fs::path& path) noexcept { return ::unlink(path.c_str()) == 0 ? 0 : errno; }

}  // namespace safetensors::io

namespace safetensors {

using io::OldFile;
using io::Place;

namespace {

/// Opens a pipe or a device by its path, as the system does, and checks that it is the one that the
/// path led to: something else could have been put in its place.
std::unique_ptr<ByteSink> open_stream(const std::filesystem::path& path, const struct stat& wanted,
                                      const Interrupt& interrupt) {
  io::Fd fd = io::open_for_writing(path, 0, interrupt);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) io::fail_write(errno, path);
  if (!io::is_stream(status) || !io::is_same_file(status, wanted)) {
    io::fail_write(ESTALE, path, "another program replaced the pipe or device as it was opened");
  }
  return std::make_unique<io::StreamSink>(std::move(fd), path);
}

/// Returns the file whose rights a new one gets; nothing if it does not exist.
std::optional<OldFile> old_file(const Place& place) {
  if (!place.has_name) return std::nullopt;
  const detail::OwnPlace& file = place.blob ? *place.blob : *place.file;
  const std::optional<struct stat> status = place.blob ? io::status_at(*place.blob) : place.status;
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  return OldFile{file, *status};
}

/// Returns the files whose sums do not describe them any more when the place has a new file: also a
/// link that was typed, which may have sums of its own.
std::vector<io::FileWithSums> files_with_sums(const Place& place,
                                              const std::filesystem::path& typed) {
  if (!place.has_name) return {};
  std::vector<io::FileWithSums> files = {*place.file};
  if (place.path() != typed) {
    files.push_back(io::naming(typed, [&] { return detail::place_of_own(typed); }));
  }
  return files;
}

std::optional<OldFile> old_file(const detail::OwnPlace* like) {
  if (like == nullptr) return std::nullopt;
  const std::optional<struct stat> status = io::status_at(*like);
  // The caller may have typed the path of a link.
  if (status && S_ISLNK(status->st_mode)) {
    return old_file(io::resolve(like->folder.path() / like->name.text()));
  }
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  return OldFile{*like, *status};
}

}  // namespace

std::unique_ptr<ByteSink> make_file_sink(const std::filesystem::path& path,
                                         const std::filesystem::path& rights_of,
                                         const Interrupt& interrupt,
                                         const io::BeforeRename& before_rename) {
  const Place place = io::resolve(path);
  if (place.status && io::is_stream(*place.status)) {
    return open_stream(path, *place.status, interrupt);
  }
  if (place.status && !S_ISREG(place.status->st_mode)) {
    fail(ErrorCode::kNotRegularFile, "neither a file nor a pipe", {.path = path});
  }
  if (io::is_empty_and_held(place)) {
    if (std::unique_ptr<ByteSink> sink = io::fill(place, path, interrupt, before_rename))
      return sink;
  }
  std::vector<io::FileWithSums> outdated = files_with_sums(place, path);
  try {
    if (!place.has_name) {
      io::fail_write(EBUSY, path, "an open file without a name cannot be replaced");
    }
    io::remove_stale_of(*place.file);
    std::optional<OldFile> old = old_file(place);
    if (!rights_of.empty()) {
      if (std::optional<OldFile> other = old_file(io::resolve(rights_of))) old = std::move(other);
    }
    return std::make_unique<io::ReplacingSink>(*place.file, old, std::move(outdated),
                                               before_rename);
  } catch (const Error& error) {
    if (place.status && io::cannot_replace(error.os_error())) throw io::CannotReplace(error);
    throw;
  }
}

std::unique_ptr<ByteSink> detail::make_own_sink(const OwnPlace& place, const OwnPlace* like,
                                                const std::function<bool()>& is_wanted) {
  // Now, so that nothing is replaced before that is known.
  const std::optional<struct stat> status = io::status_at(place);
  if (status && S_ISDIR(status->st_mode)) {
    io::fail_write(EISDIR, place.folder.path() / place.name.text());
  }
  return std::make_unique<io::ReplacingSink>(place, old_file(like), std::vector<io::FileWithSums>(),
                                             io::BeforeRename(), is_wanted);
}

std::function<bool()> detail::watch_file(const std::filesystem::path& file,
                                         const std::filesystem::path& path) {
  // Held open: another file may get the number of an inode as soon as nobody holds it.
  const auto held = std::make_shared<const io::Fd>(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!held->is_open() || ::fstat(held->get(), &status) != 0) io::fail_write(errno, path);
  return [held, status, path] {
    struct stat now{};
    return ::stat(path.c_str(), &now) == 0 && io::is_same_file(now, status);
  };
}

std::unique_ptr<ByteSink> detail::make_part_sink(
    const OwnPlace& place, const OwnPlace* like,
    const std::function<void(const std::filesystem::path&)>& before_commit) {
  return std::make_unique<io::PartSink>(place, old_file(like), before_commit);
}

}  // namespace safetensors

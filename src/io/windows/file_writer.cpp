#include "io/file_writer.hpp"

#include <cerrno>
#include <optional>
#include <string>

#include "io/os_error.hpp"
#include "io/windows/atomic_file.hpp"
#include "io/windows/handle.hpp"
#include "io/windows/last_error.hpp"
#include "io/windows/open_file.hpp"
#include "io/windows/stream_writer.hpp"

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

Handle open_for_writing(const fs::path& path, DWORD disposition) {
  Handle file = open_file(path, GENERIC_WRITE, kShareAll, disposition);
  if (!file.is_open()) fail_write(open_errno(path), path);
  return file;
}

void write_stream(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  const Handle stream = open_for_writing(path, OPEN_EXISTING);
  if (::GetFileType(stream.get()) == FILE_TYPE_DISK) {  // such as a whole drive
    fail(ErrorCode::kNotRegularFile, "neither a file nor a pipe", {.path = path});
  }
  write_pieces(stream.get(), content, path, options);
}

bool is_held(DWORD error) noexcept {
  return error == ERROR_SHARING_VIOLATION || error == ERROR_USER_MAPPED_FILE;
}

/// Throws Error kIo for an error of replacing or writing an existing file.
[[noreturn]] void fail_replace(DWORD error, const fs::path& path) {
  if (!is_held(error)) fail_write(errno_of(error), path);
  fail_write(EACCES, path, "the file is open or mapped elsewhere");
}

/// Overwrites the file. Not atomic: for directories in which no file can be created or renamed.
void write_in_place(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  const Handle file = open_for_writing(path, OPEN_EXISTING);
  // The system refuses this while the file is mapped, so no tensor loses its pages.
  if (::SetEndOfFile(file.get()) == 0) fail_replace(::GetLastError(), path);
  write_pieces(file.get(), content, path, options);
  if (options.fsync) flush(file.get(), path);
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

/// Replaces the file, and returns true. Returns false if that is not possible; the file is then
/// unchanged.
bool replace(const fs::path& path, bool is_there, const FileContent& content,
             const WriteOptions& options) {
  std::optional<AtomicFile> file;
  try {
    file.emplace(path, is_there);
  } catch (const Error& error) {
    if (is_there && cannot_replace(error.os_error())) return false;
    throw;
  }
  file->reserve(content.total_nbytes);
  write_pieces(file->handle(), content, path, options);
  const DWORD error = file->commit(options.fsync);
  if (error == ERROR_SUCCESS) return true;
  // A program that has the file open does not expect it to change, so do not write in place either.
  if (is_held(error) || !cannot_replace(errno_of(error))) fail_replace(error, path);
  return false;
}

}  // namespace

void write_file(const fs::path& path, const FileContent& content, const WriteOptions& options) {
  check_path(path);
  if (names_device(path)) {
    write_stream(path, content, options);
    return;
  }
  const fs::path target = follow_links(path);
  const std::optional<DWORD> old = attributes_of(target);
  if (old && (*old & FILE_ATTRIBUTE_DIRECTORY) != 0) fail_write(EISDIR, path);
  if (old && (*old & FILE_ATTRIBUTE_READONLY) != 0) fail_write(EACCES, path);
  if (replace(target, old.has_value(), content, options)) return;
  if (!old) {  // creating a file has succeeded, only the rename failed
    (void)open_for_writing(target, CREATE_NEW);
  }
  write_in_place(target, content, options);
}

}  // namespace safetensors::io

#include "io/windows/atomic_file.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "io/os_error.hpp"
#include "io/temporary_name.hpp"
#include "io/windows/descriptor_sink.hpp"
#include "io/windows/handle.hpp"
#include "io/windows/open_file.hpp"
#include "io/windows/pending_deletes.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 100;
// DELETE is needed to rename by handle.
constexpr DWORD kAccess = GENERIC_READ | GENERIC_WRITE | DELETE;
// While the file is open, nobody else renames, replaces or writes it.
constexpr DWORD kShareReading = FILE_SHARE_READ;

// Declared here because headers for older systems lack them. Those systems refuse the call.
constexpr auto kFileRenameInfoEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);
constexpr DWORD kReplaceIfExists = 1;
constexpr DWORD kPosixSemantics = 2;

/// Gives an open file the access list of `from`. Best effort: some file systems have none.
void copy_access_list(const std::wstring& from, HANDLE to) {
  constexpr SECURITY_INFORMATION kList = DACL_SECURITY_INFORMATION;
  DWORD size = 0;
  ::GetFileSecurityW(from.c_str(), kList, nullptr, 0, &size);
  if (size == 0) return;
  const Buffer room(size);
  auto* const list = static_cast<PSECURITY_DESCRIPTOR>(room.data());
  if (::GetFileSecurityW(from.c_str(), kList, list, size, &size) == 0) return;
  SECURITY_DESCRIPTOR_CONTROL control = 0;
  DWORD revision = 0;
  // Otherwise entries inherited from the directory would no longer follow its changes.
  if (::GetSecurityDescriptorControl(list, &control, &revision) != 0 &&
      (control & SE_DACL_AUTO_INHERITED) != 0) {
    ::SetSecurityDescriptorControl(list, SE_DACL_AUTO_INHERIT_REQ, SE_DACL_AUTO_INHERIT_REQ);
  }
  (void)::SetKernelObjectSecurity(to, kList, list);
}

/// Opens a name that the library chose. A link there is opened itself, and not followed.
Handle open_own(const fs::path& path, DWORD access, DWORD share, DWORD disposition) {
  return open_file(path, access, share, disposition, FILE_FLAG_OPEN_REPARSE_POINT);
}

/// Returns a random path beside a file.
fs::path temporary_path(const fs::path& target) {
  return folder_of(target) / temporary_name(detail::OwnName(target.filename().native())).text();
}

/// Returns what tells a file from all others of the machine; nothing if the system does not say.
std::optional<std::array<DWORD, 3>> identity_of(HANDLE handle) {
  BY_HANDLE_FILE_INFORMATION info{};
  if (::GetFileInformationByHandle(handle, &info) == 0) return std::nullopt;
  if ((info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0) return std::nullopt;
  return std::array{info.dwVolumeSerialNumber, info.nFileIndexHigh, info.nFileIndexLow};
}

/// Renames by handle, atomically, also if other programs have the old file open. Returns 0 or the
/// error.
DWORD rename_by_handle(HANDLE handle, const std::wstring& to) {
  const std::size_t name_nbytes = to.size() * sizeof(wchar_t);
  const std::size_t nbytes = sizeof(FILE_RENAME_INFO) + name_nbytes;
  const Buffer room(nbytes);
  std::memset(room.data(), 0, nbytes);
  const auto length = static_cast<DWORD>(name_nbytes);
  constexpr DWORD kFlags = kReplaceIfExists | kPosixSemantics;
  // The flags are in a union with the first member, in headers for newer systems.
  std::memcpy(room.data(), &kFlags, sizeof kFlags);
  std::memcpy(room.data() + offsetof(FILE_RENAME_INFO, FileNameLength), &length, sizeof length);
  std::memcpy(room.data() + offsetof(FILE_RENAME_INFO, FileName), to.data(), name_nbytes);
  const BOOL done = ::SetFileInformationByHandle(handle, kFileRenameInfoEx, room.data(),
                                                 static_cast<DWORD>(nbytes));
  return done != 0 ? ERROR_SUCCESS : ::GetLastError();
}

DWORD move_file(const fs::path& from, const fs::path& to, DWORD flags) {
  const BOOL done = ::MoveFileExW(system_path(from).c_str(), system_path(to).c_str(), flags);
  return done != 0 ? ERROR_SUCCESS : ::GetLastError();
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target, const std::optional<fs::path>& old)
    : target_(target), replaces_(old.has_value()) {
  create();
  if (!old) return;
  // Nobody else could open the file so far. It is shared only now, with the old file's access list,
  // so that readers can open it at the moment of the rename.
  copy_access_list(system_path(*old), handle());
  const auto made = identity_of(handle());
  handle_ = Handle();
  handle_ = open_own(temporary_, kAccess, kShareReading, OPEN_EXISTING);
  if (handle_.is_open() && identity_of(handle()) == made) return;
  const int os_error = handle_.is_open() ? EEXIST : last_errno();
  if (!handle_.is_open()) delete_or_defer(temporary_);  // else it is somebody else's
  temporary_.clear();
  fail_write(os_error, target_);
}

void AtomicFile::create() {
  const DWORD access = replaces_ ? kAccess | READ_CONTROL | WRITE_DAC : kAccess;
  for (int i = 0; !handle_.is_open(); ++i) {
    temporary_ = temporary_path(target_);
    handle_ = open_own(temporary_, access, replaces_ ? 0 : kShareReading, CREATE_NEW);
    if (handle_.is_open()) return;
    const int os_error = last_errno();
    if (os_error != EEXIST || i == kTries) fail_write(os_error, target_);
  }
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  handle_ = Handle();
  ::DeleteFileW(system_path(temporary_).c_str());
}

void AtomicFile::reserve(std::uint64_t nbytes) {
  FILE_ALLOCATION_INFO info{};
  info.AllocationSize.QuadPart = static_cast<LONGLONG>(nbytes);
  if (::SetFileInformationByHandle(handle(), FileAllocationInfo, &info, sizeof info) != 0) return;
  const int os_error = last_errno();
  // Other errors mean that it is not supported: the writes report errors.
  if (os_error == ENOSPC || os_error == EFBIG) fail_write(os_error, target_);
}

DWORD AtomicFile::commit(bool fsync) {
  if (fsync) flush(handle(), target_);
  DWORD error = rename_over(fsync);
  const bool is_held = error == ERROR_ACCESS_DENIED || error == ERROR_USER_MAPPED_FILE ||
                       error == ERROR_SHARING_VIOLATION;
  if (replaces_ && is_held) error = rename_past();
  if (error == ERROR_SUCCESS) temporary_.clear();
  return error;
}

/// Replaces the target by one rename.
DWORD AtomicFile::rename_over(bool fsync) {
  const DWORD error = rename_by_handle(handle(), system_path(target_));
  // Flushing the file also flushes its name.
  if (error == ERROR_SUCCESS && fsync) (void)::FlushFileBuffers(handle());
  handle_ = Handle();
  if (error == ERROR_SUCCESS) return error;
  return move_file(temporary_, target_,
                   MOVEFILE_REPLACE_EXISTING | (fsync ? MOVEFILE_WRITE_THROUGH : 0));
}

/// Replaces the target by two renames: a mapped file cannot be replaced or deleted, but it can be
/// renamed, and its mappings stay valid. Between the two no file has the target's name.
DWORD AtomicFile::rename_past() {
  const fs::path aside = temporary_path(target_);
  const DWORD refused = move_file(target_, aside, 0);
  if (refused != ERROR_SUCCESS && refused != ERROR_FILE_NOT_FOUND) return refused;
  const DWORD error = move_file(temporary_, target_, MOVEFILE_REPLACE_EXISTING);
  if (refused != ERROR_SUCCESS) return error;  // another writer had moved the old file away
  if (error != ERROR_SUCCESS && move_file(aside, target_, 0) == ERROR_SUCCESS) return error;
  delete_or_defer(aside);
  return error;
}

}  // namespace safetensors::io

#include "io/windows/handle.hpp"

#include <io.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

#if defined(_UCRT) && !defined(_MSC_VER)
// In MinGW's libraries, but not in its headers.
extern "C" __declspec(dllimport) _invalid_parameter_handler __cdecl
_set_thread_local_invalid_parameter_handler(_invalid_parameter_handler);
#endif

namespace safetensors::io {
namespace {

constexpr DWORD kDiskQuotaExceeded = 1295;  // not in every header

}  // namespace

HANDLE handle_of(int descriptor) {
#if defined(_UCRT) || defined(_MSC_VER)
  // By default the C run-time ends the process if the descriptor is invalid.
  const auto ignore = [](const wchar_t*, const wchar_t*, const wchar_t*, unsigned, std::uintptr_t) {
  };
  const auto old = ::_set_thread_local_invalid_parameter_handler(ignore);
  const std::intptr_t handle = ::_get_osfhandle(descriptor);
  ::_set_thread_local_invalid_parameter_handler(old);
#else
  const std::intptr_t handle = ::_get_osfhandle(descriptor);
#endif
  constexpr std::intptr_t kNoStream = -2;  // a standard stream of a program without a console
  return handle == kNoStream ? INVALID_HANDLE_VALUE : reinterpret_cast<HANDLE>(handle);
}

Handle duplicate(HANDLE handle) {
  HANDLE copy = nullptr;
  const HANDLE process = ::GetCurrentProcess();
  if (::DuplicateHandle(process, handle, process, &copy, 0, FALSE, DUPLICATE_SAME_ACCESS) == 0) {
    return {};
  }
  return Handle(copy);
}

int errno_of(DWORD error) noexcept {
  switch (error) {
    case ERROR_SUCCESS:
      return 0;
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_DRIVE:
    case ERROR_INVALID_NAME:
    case ERROR_BAD_PATHNAME:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME:
    case ERROR_NO_MORE_FILES:
      return ENOENT;
    case ERROR_FILENAME_EXCED_RANGE:
    case ERROR_BUFFER_OVERFLOW:
      return ENAMETOOLONG;
    case ERROR_DIRECTORY:
      return ENOTDIR;
    case ERROR_TOO_MANY_OPEN_FILES:
      return EMFILE;
    case ERROR_NO_SYSTEM_RESOURCES:
    case ERROR_WORKING_SET_QUOTA:
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_NOT_ENOUGH_QUOTA:
    case ERROR_COMMITMENT_LIMIT:
    case ERROR_OUTOFMEMORY:
      return ENOMEM;
    case ERROR_ACCESS_DENIED:
    case ERROR_NETWORK_ACCESS_DENIED:
    case ERROR_CURRENT_DIRECTORY:
    case ERROR_LOCK_VIOLATION:
    case ERROR_SHARING_VIOLATION:
    case ERROR_USER_MAPPED_FILE:
    case ERROR_DELETE_PENDING:
    case ERROR_PRIVILEGE_NOT_HELD:
    case ERROR_CANNOT_MAKE:
      return EACCES;
    case ERROR_WRITE_PROTECT:
      return EROFS;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS:
      return EEXIST;
    case ERROR_NOT_SAME_DEVICE:
      return EXDEV;
    case ERROR_BUSY:
    case ERROR_PIPE_BUSY:
    case ERROR_NOT_READY:
      return EBUSY;
    case ERROR_HANDLE_DISK_FULL:
    case kDiskQuotaExceeded:
    case ERROR_DISK_FULL:
      return ENOSPC;
    case ERROR_FILE_TOO_LARGE:
      return EFBIG;
    case ERROR_BROKEN_PIPE:
    case ERROR_NO_DATA:
      return EPIPE;
    case ERROR_CANT_RESOLVE_FILENAME:
      return ELOOP;
    case ERROR_INVALID_HANDLE:
      return EBADF;
    case ERROR_INVALID_FUNCTION:
    case ERROR_CALL_NOT_IMPLEMENTED:
      return ENOSYS;
    case ERROR_NOT_SUPPORTED:
      return ENOTSUP;
    case ERROR_OPERATION_ABORTED:
      return EINTR;
    case ERROR_CRC:
    case ERROR_SEEK:
    case ERROR_SECTOR_NOT_FOUND:
    case ERROR_WRITE_FAULT:
    case ERROR_READ_FAULT:
    case ERROR_GEN_FAILURE:
    case ERROR_DEV_NOT_EXIST:
    case ERROR_UNEXP_NET_ERR:
    case ERROR_NETNAME_DELETED:
    case ERROR_SEM_TIMEOUT:
    case ERROR_FILE_CORRUPT:
    case ERROR_DISK_CORRUPT:
    case ERROR_CANT_ACCESS_FILE:
    case ERROR_IO_DEVICE:
      return EIO;
    default:
      return EINVAL;
  }
}

int last_errno() noexcept { return errno_of(::GetLastError()); }

}  // namespace safetensors::io

// Opening files by path.
#pragma once

#include <filesystem>
#include <string>

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Lets other programs read, write, rename and delete the file while it is open, as on other
/// systems.
inline constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// Returns the absolute path in the form without a limit on its length; `path` itself if the system
/// cannot make one.
[[nodiscard]] std::wstring system_path(const std::filesystem::path& path);

/// Returns whether the path names a pipe or device: `\\.\pipe\name`, `NUL`, `COM1`.
[[nodiscard]] bool names_device(const std::filesystem::path& path);

/// Calls CreateFileW. Child processes do not inherit the handle. On failure the handle is not open:
/// call open_errno(path) next for the reason.
[[nodiscard]] Handle open_file(const std::filesystem::path& path, DWORD access, DWORD share,
                               DWORD disposition, DWORD flags = FILE_ATTRIBUTE_NORMAL);

/// Returns last_errno(), but EISDIR if the path is a directory, for which the system reports
/// "access denied".
[[nodiscard]] int open_errno(const std::filesystem::path& path);

}  // namespace safetensors::io

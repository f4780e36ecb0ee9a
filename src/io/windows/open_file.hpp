// Opening files by path.
#pragma once

#include <filesystem>
#include <string>

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Lets others read, write, rename and delete the file meanwhile, as other systems do.
inline constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

/// The absolute path, in the form that has no limit to its length; `path` itself when the system
/// cannot make one.
[[nodiscard]] std::wstring system_path(const std::filesystem::path& path);

/// Whether the path leads to a pipe or device: `\\.\pipe\name`, `NUL`, `COM1`.
[[nodiscard]] bool names_device(const std::filesystem::path& path);

/// CreateFileW; child processes do not inherit the handle. On failure the handle is not open, and
/// open_errno(path), called next, says why.
[[nodiscard]] Handle open_file(const std::filesystem::path& path, DWORD access, DWORD share,
                               DWORD disposition, DWORD flags = FILE_ATTRIBUTE_NORMAL);

/// last_errno(), but EISDIR where a folder stands: the system calls that "access denied".
[[nodiscard]] int open_errno(const std::filesystem::path& path);

}  // namespace safetensors::io

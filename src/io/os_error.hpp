// From the operating system's error numbers to Error.
#pragma once

#include <filesystem>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::io {

/// "Permission denied (os error 13)".
[[nodiscard]] std::string describe_os_error(int os_error);

/// A path for an error text: its bytes; on Windows UTF-8, with what cannot be that replaced.
[[nodiscard]] std::string shown_path(const std::filesystem::path& path);

/// Throws Error kInvalidArgument when the path contains a NUL: system calls would cut it there, and
/// open another file than the one named.
void check_path(const std::filesystem::path& path);

/// Throws Error for opening or reading `path`: kNotRegularFile for EISDIR, else kIo.
[[noreturn]] void fail_os(int os_error, const std::filesystem::path& path);

/// The same for writing `path`.
[[noreturn]] void fail_write(int os_error, const std::filesystem::path& path);

}  // namespace safetensors::io

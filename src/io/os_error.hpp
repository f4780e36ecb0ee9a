// From the operating system's error numbers to Error.
#pragma once

#include <filesystem>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::io {

/// Throws Error kInvalidArgument if the path contains a NUL: system calls would cut it there, and
/// open another file than the one named.
void check_path(const std::filesystem::path& path);

/// Throws Error for opening or reading `path`: kNotRegularFile for EISDIR, else kIo.
[[noreturn]] void fail_os(int os_error, const std::filesystem::path& path);

/// Throws Error for writing `path`, with the same codes. `why` says more than the error number
/// does.
[[noreturn]] void fail_write(int os_error, const std::filesystem::path& path,
                             const std::string& why = {});

}  // namespace safetensors::io

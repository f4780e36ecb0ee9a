#include "io/os_error.hpp"

#include <cerrno>
#include <system_error>

namespace safetensors::io {

std::string describe_os_error(int os_error) {
  return std::generic_category().message(os_error) + " (os error " + std::to_string(os_error) + ")";
}

void fail_os(int os_error, const std::filesystem::path& path) {
  // Upstream's text for the one case that programs look for.
  if (os_error == ENOENT) {
    fail(ErrorCode::kIo, "No such file or directory: " + shown_path(path), os_error);
  }
  fail(ErrorCode::kIo, describe_os_error(os_error) + ": " + shown_path(path), os_error);
}

void fail_write(int os_error, const std::filesystem::path& path) {
  fail(ErrorCode::kIo,
       "I/O error: " + describe_os_error(os_error) + " at path \"" + shown_path(path) + "\"",
       os_error);
}

}  // namespace safetensors::io

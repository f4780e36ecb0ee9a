#include "io/os_error.hpp"

#include <cerrno>
#include <system_error>

namespace safetensors::io {
namespace {

ErrorCode code_of(int os_error) noexcept {
  return os_error == EISDIR ? ErrorCode::kNotRegularFile : ErrorCode::kIo;
}

}  // namespace

std::string describe_os_error(int os_error) {
  return std::generic_category().message(os_error) + " (os error " + std::to_string(os_error) + ")";
}

void check_path(const std::filesystem::path& path) {
  if (path.native().find(std::filesystem::path::value_type{}) == std::string::npos) return;
  std::string text = shown_path(path);
  for (std::size_t at = 0; (at = text.find('\0', at)) != std::string::npos;) {
    text.replace(at, 1, "\\0");
  }
  fail(ErrorCode::kInvalidArgument, "the path contains a NUL: " + text);
}

void fail_os(int os_error, const std::filesystem::path& path) {
  // Upstream's text for the one case that programs look for.
  if (os_error == ENOENT) {
    fail(ErrorCode::kIo, "No such file or directory: " + shown_path(path), os_error);
  }
  fail(code_of(os_error), describe_os_error(os_error) + ": " + shown_path(path), os_error);
}

void fail_write(int os_error, const std::filesystem::path& path) {
  fail(code_of(os_error),
       "I/O error: " + describe_os_error(os_error) + " at path \"" + shown_path(path) + "\"",
       os_error);
}

}  // namespace safetensors::io

#include "io/os_error.hpp"

#include <cerrno>

namespace safetensors::io {
namespace {

using Operation = ErrorContext::Operation;

ErrorCode code_of(int os_error) noexcept {
  return os_error == EISDIR ? ErrorCode::kNotRegularFile : ErrorCode::kIo;
}

}  // namespace

void check_path(const std::filesystem::path& path) {
  if (path.native().find(std::filesystem::path::value_type{}) == std::string::npos) return;
  fail(ErrorCode::kInvalidArgument, "the path contains a NUL", {.path = path});
}

void fail_os(int os_error, const std::filesystem::path& path) {
  fail(code_of(os_error), os_error == EISDIR ? "load_files loads the model of a folder" : "",
       {.path = path, .os_error = os_error, .operation = Operation::kRead});
}

void fail_write(int os_error, const std::filesystem::path& path, const std::string& why) {
  fail(code_of(os_error), why,
       {.path = path, .os_error = os_error, .operation = Operation::kWrite});
}

}  // namespace safetensors::io

#include "safetensors/error.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <type_traits>

#include "base/display_path.hpp"
#include "base/text.hpp"

namespace safetensors {
namespace {

// In the order of the enumeration, whose first value is 1.
constexpr std::array<std::string_view, kErrorCodeCount> kNames = {
    "INVALID_HEADER_UTF8",
    "INVALID_HEADER_JSON",
    "HEADER_TOO_LARGE",
    "HEADER_TOO_SMALL",
    "INVALID_HEADER_LENGTH",
    "DUPLICATE_NAME",
    "INVALID_OFFSET",
    "INVALID_TENSOR_INFO",
    "INCOMPLETE_DATA",
    "OVERFLOW",
    "MISALIGNED_SLICE",
    "TENSOR_NOT_FOUND",
    "TOO_MANY_INDICES",
    "INDEX_OUT_OF_BOUNDS",
    "INVALID_SLICE",
    "INVALID_ARGUMENT",
    "UNSUPPORTED_DTYPE",
    "NOT_REGULAR_FILE",
    "IO",
    "FILE_CHANGED",
    "OUT_OF_MEMORY",
    "DEVICE",
    "WRITTEN_TWICE",
    "MISSING_TENSORS",
    "OUT_OF_ORDER",
    "WRITER_CLOSED",
    "INVALID_PATCH",
    "WRONG_BASE",
    "PATCH_APPLIED",
    "DAMAGED",
    "NO_MODEL",
    "SEVERAL_MODELS",
    "INCOMPLETE_MODEL",
};
static_assert(!kNames.back().empty());
static_assert(kErrorCodeCount == static_cast<std::size_t>(ErrorCode::kIncompleteModel));

std::string describe(int os_error) {
  return std::generic_category().message(os_error) + " (os error " + std::to_string(os_error) + ")";
}

/// Returns whether a message names a path: it begins with "PATH: ", or has a path with a separator
/// anywhere. A short name may stand in a message by chance.
bool names_path(std::string_view message, std::string_view path) {
  if (message.starts_with(path) && message.substr(path.size()).starts_with(": ")) return true;
  if (path.find('/') == std::string_view::npos) return false;
  for (std::size_t at = 0; (at = message.find(path, at)) != std::string_view::npos; ++at) {
    const std::string_view rest = message.substr(at + path.size());
    if (rest.empty() || std::string_view(" ,:)").find(rest.front()) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

/// Returns what() of an error. Only this function writes a file's name into a text, unless
/// the text is about more than one file. The texts of failed reads and writes are upstream's.
std::string format_message(const std::string& given, const ErrorContext& context) {
  std::string message = one_line(given);  // a name of a file may have any characters
  // The empty path is one that a caller passed, and no file, if an operation failed on it.
  if (context.path.empty() && context.operation == ErrorContext::Operation::kNone) return message;
  const std::string path = display_path(context.path);
  std::string text;
  switch (context.operation) {
    case ErrorContext::Operation::kNone:
      return names_path(message, path) ? message : message + " (in " + path + ")";
    case ErrorContext::Operation::kRead:
      text =
          (context.os_error == ENOENT ? "No such file or directory" : describe(context.os_error)) +
          ": " + path;
      break;
    case ErrorContext::Operation::kWrite:
      text = "I/O error: " + describe(context.os_error) + " at path \"" + path + "\"";
      break;
  }
  return message.empty() ? text : text + ": " + message;
}

}  // namespace

std::string_view name(ErrorCode code) noexcept {
  const std::size_t row = static_cast<std::size_t>(code) - 1;  // 0 wraps past the end
  return row < kNames.size() ? kNames[row] : "";
}

static_assert(std::is_nothrow_copy_constructible_v<Error>);

Error::Error(ErrorCode code, const std::string& message, const ErrorContext& context)
    : std::runtime_error(format_message(message, context)),
      os_error_(context.os_error),
      code_(code) {
  if (context.path.empty() && context.subject.empty() && !context.cause) return;
  details_ = std::make_shared<const Details>(Details{context.path, context.subject, context.cause});
}

Error::~Error() = default;

const std::filesystem::path& Error::path() const noexcept {
  static const std::filesystem::path none;
  return details_ ? details_->path : none;
}

const std::string& Error::subject() const noexcept {
  static const std::string none;
  return details_ ? details_->subject : none;
}

std::exception_ptr Error::cause() const noexcept { return details_ ? details_->cause : nullptr; }

Error Error::with_context(const std::string& prefix, const std::filesystem::path& path,
                          const std::string& subject) const {
  const bool has_path = !this->path().empty();  // what() then names it already
  Error error(code_, prefix + what(),
              {.path = has_path ? std::filesystem::path() : path, .os_error = os_error_});
  error.details_ = std::make_shared<const Details>(
      Details{has_path ? this->path() : path, this->subject().empty() ? subject : this->subject(),
              cause()});
  return error;
}

void fail(ErrorCode code, const std::string& message, int os_error) {
  throw Error(code, message, os_error);
}

void fail(ErrorCode code, const std::string& message, const ErrorContext& context) {
  throw Error(code, message, context);
}

}  // namespace safetensors

#include "safetensors/error.hpp"

#include <array>
#include <cstddef>

namespace safetensors {
namespace {

// In the order of the enumeration, whose first value is 1.
constexpr std::array<std::string_view, 22> kNames = {
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
};
static_assert(kNames.size() == static_cast<std::size_t>(ErrorCode::kDevice));

}  // namespace

std::string_view name(ErrorCode code) noexcept {
  const std::size_t row = static_cast<std::size_t>(code) - 1;  // 0 wraps past the end
  return row < kNames.size() ? kNames[row] : "";
}

Error::~Error() = default;

void fail(ErrorCode code, const std::string& message, int os_error) {
  throw Error(code, message, os_error);
}

}  // namespace safetensors

#include "io/environment.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/parse_integer.hpp"
#include "safetensors/error.hpp"

namespace safetensors::io {
namespace {

/// The variable's value; empty if it is unset.
std::string_view value_of(const char* variable) noexcept {
  const char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): as everywhere
  return value == nullptr ? std::string_view() : value;
}

[[noreturn]] void refuse(const char* variable, std::string_view value, const std::string& allowed) {
  fail(ErrorCode::kInvalidArgument, "the environment variable " + std::string(variable) +
                                        " must be " + allowed + ", not \"" + std::string(value) +
                                        "\"");
}

}  // namespace

std::optional<std::uint64_t> env_uint(const char* variable, std::uint64_t max) {
  const std::string_view value = value_of(variable);
  if (value.empty()) return std::nullopt;
  const auto number = parse_integer<std::uint64_t>(value);
  if (!number || *number > max) {
    refuse(variable, value, "a number of at most " + std::to_string(max));
  }
  return number;
}

std::optional<bool> env_flag(const char* variable) {
  const std::string_view value = value_of(variable);
  if (value.empty()) return std::nullopt;
  if (value == "1" || value == "on") return true;
  if (value == "0" || value == "off") return false;
  refuse(variable, value, "0, 1, off or on");
}

}  // namespace safetensors::io

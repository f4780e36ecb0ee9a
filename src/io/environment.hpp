// Settings in environment variables. A value that is not allowed is an error that names the
// variable, so that a typing mistake does not go unnoticed.
#pragma once

#include <cstdint>
#include <optional>

namespace safetensors::io {

/// Returns the value of a variable that holds a decimal number; nothing if it is unset or empty.
/// Throws: Error kInvalidArgument, naming the variable, unless it is a number of at most `max`.
[[nodiscard]] std::optional<std::uint64_t> env_uint(const char* variable, std::uint64_t max);

/// Returns the value of a variable that is 1 or on, 0 or off; nothing if it is unset or empty.
/// Throws: Error kInvalidArgument, naming the variable, for any other value.
[[nodiscard]] std::optional<bool> env_flag(const char* variable);

}  // namespace safetensors::io

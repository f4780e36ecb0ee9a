// Text files of the kernel, under /proc and /sys.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace safetensors::io {

/// Returns the whole text of a file, whose size such files do not report; nothing if it cannot be
/// read. Does not use a stream: linking streams adds the locales, half again the size of the Python
/// extension.
[[nodiscard]] std::optional<std::string> read_kernel_file(const char* path);

/// Removes the first token from `text` and returns it; empty at the end. White space separates
/// tokens.
[[nodiscard]] std::string_view next_token(std::string_view& text) noexcept;

/// Returns the number that the token spells; nothing if it is no number, or one that does not fit.
template <std::unsigned_integral Number>
[[nodiscard]] std::optional<Number> parse_uint(std::string_view token, int base = 10) noexcept {
  Number number = 0;
  const char* const begin = token.data();
  const char* const end = begin + token.size();
  const auto [stop, error] = std::from_chars(begin, end, number, base);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace safetensors::io

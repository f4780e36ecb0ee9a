// Integers as text.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace safetensors {

/// Returns the integer that the whole text spells: digits, after a "-" if the type is signed.
/// Nothing for other texts, and for an integer that does not fit.
template <std::integral Integer>
[[nodiscard]] std::optional<Integer> parse_integer(std::string_view text, int base = 10) noexcept {
  Integer value = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, value, base);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace safetensors

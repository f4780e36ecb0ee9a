// What a recovery reads in the records that a killed process has left: the switch of a save, the
// journal of a change in place.
#pragma once

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace safetensors {

/// Throws Error kInvalidArgument: a recovery would have to believe this file.
[[noreturn]] void refuse_to_follow(const std::filesystem::path& path, const std::string& reason);

/// Returns the number of a JSON text; nothing if it is none, or another one than an integer that
/// fits.
template <typename Number>
std::optional<Number> integer_of(std::string_view text) {
  Number number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [last, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || last != end || text.empty()) return std::nullopt;
  return number;
}

/// Returns the bytes of a file name in which a JSON string has halves of surrogate pairs for those
/// that are not UTF-8 (PEP 383); nothing if it has another half.
[[nodiscard]] std::optional<std::string> file_name_of(std::string_view text);

}  // namespace safetensors

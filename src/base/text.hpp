// Pieces of texts, for errors and JSON.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace safetensors {

/// Returns a text as one line: control characters are escaped as in JSON. A NUL would end the text,
/// and a newline or an escape sequence could forge other output.
[[nodiscard]] inline std::string one_line(std::string_view given) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(given.size());
  for (const char c : given) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      text += c;
    } else {
      text += "\\u00";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 0xF];
    }
  }
  return text;
}

/// Returns a name for an error text: one line, truncated between characters after 500 bytes.
[[nodiscard]] inline std::string clipped(std::string_view name) {
  constexpr std::size_t kMaxBytes = 500;
  if (name.size() <= kMaxBytes) return one_line(name);
  std::size_t end = kMaxBytes;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return one_line(name.substr(0, end)) + "...";
}

/// Returns 1234567 as "1,234,567".
[[nodiscard]] inline std::string grouped(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

/// Returns 1 and "byte" as "1 byte", 1234 as "1,234 bytes".
[[nodiscard]] inline std::string counted(std::uint64_t count, std::string_view unit) {
  return grouped(count) + " " + std::string(unit) + (count == 1 ? "" : "s");
}

/// Returns a shape as "[2, 3]", truncated after 64 axes.
template <std::integral Size>
[[nodiscard]] std::string shown(std::span<const Size> shape) {
  constexpr std::size_t kMaxAxes = 64;
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size() && i < kMaxAxes; ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  if (shape.size() > kMaxAxes) text += ", ...";
  return text + "]";
}

/// Appends a number without a temporary string.
inline void append_number(std::string& text, std::uint64_t value) {
  char digits[20];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  (void)error;  // 20 digits hold every 64-bit number
  text.append(digits, end);
}

}  // namespace safetensors

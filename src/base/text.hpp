// Pieces of texts, for errors and JSON.
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// Returns the first byte from `p` on that JSON's strings escape or end at: a quote, a backslash or
/// a control character; `end` if there is none.
[[nodiscard]] inline const char* find_json_special(const char* p, const char* end) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  constexpr std::uint64_t kHigh = 0x8080808080808080U;
  if constexpr (std::endian::native == std::endian::little) {
    // Eight bytes at a time. (x - 1) & ~x has the high bit set in a byte x that is 0, and so finds
    // the byte c as the zero of w ^ c; (x - 0x20) & ~x likewise finds bytes below 0x20. The borrow
    // of a subtraction can set bits above the lowest hit, which therefore is the only one used.
    // https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
    for (; end - p >= 8; p += 8) {
      std::uint64_t w = 0;
      std::memcpy(&w, p, sizeof w);
      const std::uint64_t quote = w ^ (kOnes * '"');
      const std::uint64_t backslash = w ^ (kOnes * '\\');
      const std::uint64_t hits = (((quote - kOnes) & ~quote) | ((backslash - kOnes) & ~backslash) |
                                  ((w - kOnes * 0x20) & ~w)) &
                                 kHigh;
      if (hits != 0) return p + std::countr_zero(hits) / 8;
    }
  }
  while (p != end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

/// Appends a number without a temporary string.
inline void append_number(std::string& text, std::uint64_t value) {
  char digits[20];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  (void)error;  // 20 digits hold every 64-bit number
  text.append(digits, end);
}

}  // namespace safetensors

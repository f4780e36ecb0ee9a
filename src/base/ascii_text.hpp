// Text in ASCII, as Python writes it: JSON of json.dumps, and names of repr in messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.hpp"

namespace safetensors {

namespace detail {

/// A character of a text, or a byte that is no part of one.
struct Character {
  char32_t code;  ///< for such a byte, the half of a surrogate pair that Python has in its place
  std::size_t nbytes;
};

/// Returns the first character. Requires: the text is not empty.
inline Character first_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t length = lead_of(byte(0)).length;
  constexpr char32_t kUndecodable = 0xDC00;  // PEP 383
  if (length == 0 || length > text.size() || find_invalid_utf8(text.substr(0, length))) {
    return {kUndecodable + byte(0), 1};
  }
  char32_t code = byte(0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, length};
}

inline void append_hex(std::string& text, char32_t value, int digits) {
  constexpr char kHex[] = "0123456789abcdef";
  while (digits-- > 0) text += kHex[value >> (4 * digits) & 15];
}

/// Appends \uXXXX, or two of them for a character that UTF-16 has in two units.
inline void append_escape(std::string& text, char32_t code) {
  if (code >= 0x10000) {
    append_escape(text, 0xD800 + ((code - 0x10000) >> 10));
    code = 0xDC00 + (code & 0x3FF);
  }
  text += "\\u";
  append_hex(text, code, 4);
}

/// Returns the letter that escapes a control character in JSON; 0 if there is none.
constexpr char escape_letter(char32_t code) noexcept {
  switch (code) {
    case '\b':
      return 'b';
    case '\t':
      return 't';
    case '\n':
      return 'n';
    case '\f':
      return 'f';
    case '\r':
      return 'r';
    default:
      return 0;
  }
}

}  // namespace detail

/// Appends characters as in a JSON string in ASCII. A byte that is not UTF-8, as a file name may
/// have, becomes half of a surrogate pair (PEP 383).
inline void append_ascii_escaped(std::string& json, std::string_view text) {
  while (!text.empty()) {
    const detail::Character next = detail::first_character(text);
    text.remove_prefix(next.nbytes);
    if (next.code == '"' || next.code == '\\') {
      json += '\\';
      json += static_cast<char>(next.code);
    } else if (next.code >= 0x20 && next.code < 0x7F) {
      json += static_cast<char>(next.code);
    } else if (const char letter = detail::escape_letter(next.code); letter != 0) {
      json += '\\';
      json += letter;
    } else {
      detail::append_escape(json, next.code);
    }
  }
}

/// The same, in quotes.
inline void append_ascii_json(std::string& json, std::string_view text) {
  json += '"';
  append_ascii_escaped(json, text);
  json += '"';
}

/// Returns the first 100 characters of a text in quotes, for a message. Control characters, quotes,
/// backslashes and bytes that are not UTF-8 are escaped.
[[nodiscard]] inline std::string repr_of(std::string_view text) {
  std::string result = "'";
  for (int left = 100; left > 0 && !text.empty(); --left) {
    const detail::Character next = detail::first_character(text);
    const char letter = next.code == '\n'   ? 'n'
                        : next.code == '\r' ? 'r'
                        : next.code == '\t' ? 't'
                                            : '\0';
    if (letter != 0) {
      result += '\\';
      result += letter;
    } else if (next.code < 0x20 || next.code == 0x7F) {
      result += "\\x";
      detail::append_hex(result, next.code, 2);
    } else if (next.code >= 0xDC80 && next.code <= 0xDCFF) {
      detail::append_escape(result, next.code);
    } else {
      if (next.code == '\\' || next.code == '\'') result += '\\';
      result.append(text.substr(0, next.nbytes));
    }
    text.remove_prefix(next.nbytes);
  }
  return result + "'";
}

}  // namespace safetensors

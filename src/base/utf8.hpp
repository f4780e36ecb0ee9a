// Validation of UTF-8, after table 3-7 of the Unicode standard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace safetensors {

/// The first error in a text.
struct InvalidUtf8 {
  std::size_t offset;  ///< of the first byte that fits no sequence
  std::size_t nbytes;  ///< bytes of the broken sequence; 0 when the text ends inside it
};

namespace detail {

inline constexpr std::uint64_t kHighBits = 0x8080808080808080U;

/// Returns how many bytes from `p` on are ASCII, in whole blocks of 32.
inline std::size_t skip_ascii(const char* p, std::size_t size) noexcept {
  std::size_t i = 0;
  while (size - i >= 32) {
    std::uint64_t w[4];
    std::memcpy(w, p + i, sizeof w);
    if (((w[0] | w[1] | w[2] | w[3]) & kHighBits) != 0) break;
    i += 32;
  }
  return i;
}

/// A row of the table: the length of the sequence that a lead byte begins, and the range of the
/// second byte. The range excludes overlong forms, surrogates and code points above U+10FFFF.
struct Lead {
  std::size_t length;
  unsigned char low;
  unsigned char high;
};

inline Lead lead_of(unsigned char c) noexcept {
  if (c >= 0xC2 && c <= 0xDF) return {2, 0x80, 0xBF};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c >= 0xE1 && c <= 0xEF) return {3, 0x80, 0xBF};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c >= 0xF1 && c <= 0xF3) return {4, 0x80, 0xBF};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace detail

/// Returns the first place at which `text` is not UTF-8; nothing if all of it is.
[[nodiscard]] inline std::optional<InvalidUtf8> find_invalid_utf8(std::string_view text) noexcept {
  const std::size_t size = text.size();
  std::size_t i = 0;
  while (i < size) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      i += 1;
      i += detail::skip_ascii(text.data() + i, size - i);
      continue;
    }
    const detail::Lead lead = detail::lead_of(c);
    if (lead.length == 0) return InvalidUtf8{i, 1};
    for (std::size_t k = 1; k < lead.length; ++k) {
      if (i + k == size) return InvalidUtf8{i, 0};
      const auto next = static_cast<unsigned char>(text[i + k]);
      const unsigned char low = k == 1 ? lead.low : 0x80;
      const unsigned char high = k == 1 ? lead.high : 0xBF;
      if (next < low || next > high) return InvalidUtf8{i, k};
    }
    i += lead.length;
  }
  return std::nullopt;
}

}  // namespace safetensors

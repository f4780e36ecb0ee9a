// Base64, after RFC 4648.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace safetensors {

inline constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Calls `add(byte)` for each byte of a text. Returns false if the text is not base64 with padding,
/// or its last digit has bits that belong to no byte; `add` was called for a part then.
template <typename Add>
[[nodiscard]] bool decode_base64(std::string_view text, const Add& add) {
  static constexpr auto kValues = [] {
    std::array<std::uint8_t, 256> values{};
    values.fill(64);
    for (std::size_t i = 0; i < 64; ++i) {
      values[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<std::uint8_t>(i);
    }
    return values;
  }();
  if (text.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : text) {
    const std::uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value > 63) return false;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    add(static_cast<std::uint8_t>(bits >> count & 0xFF));
  }
  return (bits & ((1U << count) - 1)) == 0;
}

/// Appends the base64 text of bytes. `next()` returns one byte at a time.
template <typename Next>
void append_base64(std::string& text, std::size_t nbytes, const Next& next) {
  for (std::size_t i = 0; i < nbytes; i += 3) {
    const std::size_t left = nbytes - i;
    std::uint32_t bits = std::uint32_t{next()} << 16;
    if (left > 1) bits |= std::uint32_t{next()} << 8;
    if (left > 2) bits |= std::uint32_t{next()};
    for (unsigned k = 0; k < 4; ++k) {
      text += k <= left ? kBase64Digits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
}

}  // namespace safetensors

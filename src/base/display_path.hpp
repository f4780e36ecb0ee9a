// File names for messages.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>

namespace safetensors {

namespace detail {

/// Converts UTF-16 to UTF-8. Half of a surrogate pair, which a file name may hold, becomes U+FFFD;
/// path::u8string() would throw.
template <typename Unit>
[[nodiscard]] std::string utf8_of_utf16(std::basic_string_view<Unit> text) {
  const auto unit = [&](std::size_t i) {
    return i < text.size() ? static_cast<char32_t>(text[i]) & 0xFFFF : U'\0';
  };
  const auto is_high = [](char32_t c) { return c >= 0xD800 && c < 0xDC00; };
  const auto is_low = [](char32_t c) { return c >= 0xDC00 && c < 0xE000; };
  std::string utf8;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char32_t c = unit(i);
    if (is_high(c) && is_low(unit(i + 1))) {
      c = 0x10000 + ((c - 0xD800) << 10) + (unit(++i) - 0xDC00);
    } else if (is_high(c) || is_low(c)) {
      c = 0xFFFD;
    }
    // The lead byte, then six bits in each byte that follows (RFC 3629, section 3).
    const int trailing = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr char32_t kLead[] = {0x00, 0xC0, 0xE0, 0xF0};
    utf8 += static_cast<char>(kLead[trailing] | c >> (6 * trailing));
    for (int left = trailing; left-- > 0;)
      utf8 += static_cast<char>(0x80 | (c >> (6 * left) & 0x3F));
  }
  return utf8;
}

}  // namespace detail

/// Returns a path for a message: its bytes unchanged; on Windows UTF-8. A NUL, which would end the
/// message, becomes "\0".
[[nodiscard]] inline std::string display_path(const std::filesystem::path& path) {
  // Generic, so that only the branch for this system's characters is compiled.
  const auto to_utf8 = [](const auto& native) -> std::string {
    if constexpr (std::is_same_v<decltype(native), const std::string&>) {
      return native;
    } else {
      return detail::utf8_of_utf16(std::basic_string_view(native.data(), native.size()));
    }
  };
  std::string text = to_utf8(path.native());
  for (std::size_t at = 0; (at = text.find('\0', at)) != std::string::npos;) {
    text.replace(at, 1, "\\0");
  }
  return text;
}

/// Returns the path that display_path() shows so.
[[nodiscard]] inline std::filesystem::path path_of_name(const std::string& name) {
#if defined(_WIN32)
  return std::u8string(name.begin(), name.end());
#else
  return name;
#endif
}

}  // namespace safetensors

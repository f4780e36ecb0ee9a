// Text that the kernel shows as files: /proc, /sys.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace safetensors::io {

/// All of a file whose size is not known before; nothing when it cannot be read. Not by a stream:
/// streams bring the locales, a third of what the Python extension would then be.
[[nodiscard]] std::optional<std::string> read_kernel_text(const char* path);

/// Cuts the first word off `text`, words being apart by white space; empty at the end.
[[nodiscard]] std::string_view take_word(std::string_view& text) noexcept;

/// The number that a word is, or nothing.
template <std::unsigned_integral Number>
[[nodiscard]] std::optional<Number> number_of(std::string_view word, int base = 10) noexcept {
  Number number = 0;
  const char* const begin = word.data();
  const char* const end = begin + word.size();
  const auto [stop, error] = std::from_chars(begin, end, number, base);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace safetensors::io

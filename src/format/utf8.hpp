// Strict UTF-8, as the Unicode standard's table 3-7 has it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace safetensors::format {

/// Where text stops being UTF-8.
struct InvalidUtf8 {
  std::size_t offset;  ///< of the first byte that fits no sequence
  std::size_t nbytes;  ///< bytes of the broken sequence; 0 when the text ends inside it
};

/// The first place at which `text` is not UTF-8; nothing when all of it is.
[[nodiscard]] std::optional<InvalidUtf8> find_invalid_utf8(std::string_view text) noexcept;

}  // namespace safetensors::format

// Which relative paths of a text file may be followed.
#pragma once

#include <cstddef>
#include <string_view>

namespace safetensors {

/// The longest name of a file, in bytes, that a text file may state: Linux takes no longer path.
inline constexpr std::size_t kMaxFileNameSize = 4096;

/// Returns whether a relative path names something below the folder that it is relative to. The
/// rules of all systems apply at once: backslashes separate, and drives such as `C:` are refused.
/// So is a NUL, which no name has, and a path of more than kMaxFileNameSize bytes.
[[nodiscard]] bool is_below_folder(std::string_view path);

}  // namespace safetensors

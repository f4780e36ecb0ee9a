// Which relative paths of a text file may be followed.
#pragma once

#include <string_view>

namespace safetensors {

/// Returns whether a relative path names something below the folder that it is relative to. The
/// rules of all systems apply at once: backslashes separate, and drives such as `C:` are refused.
/// So is a NUL, which no name has.
[[nodiscard]] bool is_below_folder(std::string_view path);

}  // namespace safetensors

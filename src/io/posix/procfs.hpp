// Text files of the kernel, under /proc and /sys.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace safetensors::io {

/// Returns the whole text of a file, whose size such files do not report; nothing if it cannot be
/// read. Does not use a stream: linking streams adds the locales, half again the size of the Python
/// extension.
[[nodiscard]] std::optional<std::string> read_kernel_file(const char* path);

/// Removes the first token from `text` and returns it; empty at the end. White space separates
/// tokens.
[[nodiscard]] std::string_view next_token(std::string_view& text) noexcept;

}  // namespace safetensors::io

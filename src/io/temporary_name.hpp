// Names for files that are on their way to another name.
#pragma once

#include <filesystem>

namespace safetensors::io {

/// The folder that `target` is in.
[[nodiscard]] std::filesystem::path folder_of(const std::filesystem::path& target);

/// A name beside `target` that nobody else uses: hidden, and telling where it came from should it
/// stay behind.
[[nodiscard]] std::filesystem::path temporary_name(const std::filesystem::path& target);

}  // namespace safetensors::io

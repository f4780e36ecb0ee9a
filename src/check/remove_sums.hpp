// Removes the sums of files that change.
#pragma once

#include <filesystem>
#include <functional>

namespace safetensors {

/// As the public remove_sums(). `remove` removes a file in the folder of `file`, by any path that
/// ends with its name, and returns 0 or an error number.
void remove_sums(const std::filesystem::path& file,
                 const std::function<int(const std::filesystem::path&)>& remove);

}  // namespace safetensors

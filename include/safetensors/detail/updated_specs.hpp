// Which tensors an updated file has. For this project's own bindings: it may change at any time.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"

namespace safetensors::detail {

/// Returns the tensors of a file after update_file(): those that it has, in the order of their
/// bytes, without the removed ones, and then those that are added.
///
/// path: names the file in errors.
/// Throws: what update_file() throws about names, dtypes and shapes.
/// Lifetime: the result views what `old` and `now` view.
[[nodiscard]] SAFETENSORS_API std::vector<TensorSpec> updated_specs(
    const std::filesystem::path& path, std::span<const TensorSpec> old,
    std::span<const TensorSpec> now, std::span<const std::string_view> removed, bool add);

}  // namespace safetensors::detail

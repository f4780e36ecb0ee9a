// Suggestions for misspelt names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace safetensors::weights {

/// Returns the three of `names` that are most similar to `name`, as the end of an error message:
/// "; near are `a`, `b`". Returns an empty text if none is similar. Compares 4,000 names at most.
[[nodiscard]] std::string name_suggestions(std::string_view name,
                                           std::span<const std::string_view> names);

}  // namespace safetensors::weights

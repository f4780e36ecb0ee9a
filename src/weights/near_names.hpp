// Names that somebody may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace safetensors::weights {

/// The few of `names` that are nearest to `name`, for an error text: "; near are `a`, `b`". Empty
/// when none is near. Looks at a few thousand names at most.
[[nodiscard]] std::string near_names(std::string_view name,
                                     std::span<const std::string_view> names);

}  // namespace safetensors::weights

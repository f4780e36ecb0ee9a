// Names in the order of their bytes.
#pragma once

#include <span>

#include "safetensors/header.hpp"

namespace safetensors::format {

/// Sorts by name. Names of a file have long beginnings in common, which are passed over once for
/// many names instead of at every comparison.
void sort_by_name(std::span<const TensorInfo*> tensors);

}  // namespace safetensors::format

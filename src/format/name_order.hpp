// Sorting tensors by name.
#pragma once

#include <span>

#include "safetensors/header.hpp"

namespace safetensors::format {

/// Sorts by name, in byte order. The names of a file share long prefixes; this skips a prefix once
/// for many names, where a comparison sort would compare it again and again. Equal names, as of
/// several files, are in any order.
void sort_by_name(std::span<const TensorInfo*> tensors);

}  // namespace safetensors::format

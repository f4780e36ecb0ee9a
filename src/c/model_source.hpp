// Models whose files the caller opens.
#pragma once

#include <cstddef>

#include "safetensors/model_files.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// Takes a folder of the caller, and releases it when the last copy of the result, and of what it
/// opened, is gone. Does not trust what its function returns.
/// Throws: Error kInvalidArgument, and has taken it then unless its `size` or `open` is wrong;
///   std::bad_alloc.
[[nodiscard]] ModelSource model_source_of(const safetensors_model_source* source, const char* label,
                                          std::size_t label_size);

}  // namespace safetensors::c

// How error texts name a dtype.
#pragma once

#include <string>

#include "safetensors/dtype.hpp"

namespace safetensors {

/// Returns the name of a dtype; the number of a value that is none.
[[nodiscard]] inline std::string dtype_text(Dtype dtype) {
  const std::string_view code = name(dtype);
  return code.empty() ? std::to_string(static_cast<unsigned>(dtype)) : std::string(code);
}

/// Returns the text of an error for a value that is no dtype.
[[nodiscard]] inline std::string no_dtype_text(Dtype dtype) {
  return "no dtype has the value " + std::to_string(static_cast<unsigned>(dtype));
}

}  // namespace safetensors

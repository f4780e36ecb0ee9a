// The kernel objects behind C run-time descriptors.
#pragma once

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Returns the handle of a descriptor, which keeps it; INVALID_HANDLE_VALUE if there is no such
/// descriptor.
[[nodiscard]] HANDLE handle_of(int descriptor);

/// Returns another handle of the same open file, with the same position. It is not open if the
/// system refuses that.
[[nodiscard]] Handle duplicate(HANDLE handle);

}  // namespace safetensors::io

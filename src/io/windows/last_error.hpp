// Conversion of the system's error numbers to those of <cerrno>, which Error contains.
#pragma once

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Returns the errno closest to a result of GetLastError(); EINVAL if none is close, as the C
/// run-time does.
[[nodiscard]] int errno_of(DWORD error) noexcept;

/// Returns errno_of(GetLastError()).
[[nodiscard]] int last_errno() noexcept;

}  // namespace safetensors::io

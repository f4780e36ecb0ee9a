// From the system's error numbers to those of <cerrno>, which Error carries.
#pragma once

#include "io/windows/handle.hpp"

namespace safetensors::io {

/// The errno nearest to what GetLastError() said; EINVAL when none is near, as the C run-time has
/// it.
[[nodiscard]] int errno_of(DWORD error) noexcept;

/// errno_of(GetLastError()).
[[nodiscard]] int last_errno() noexcept;

}  // namespace safetensors::io

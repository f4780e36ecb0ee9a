// What Linux and its kin tell about an open file.
#pragma once

#include <cstdint>

namespace safetensors::io {

/// Whether the file lies behind a network, or on a file system in user space. False when the
/// system does not tell.
[[nodiscard]] bool is_remote(int fd) noexcept;

/// Bytes of the file's first `nbytes` that are in the page cache; all of them when the system does
/// not tell.
[[nodiscard]] std::uint64_t cached_nbytes(int fd, std::uint64_t nbytes) noexcept;

}  // namespace safetensors::io

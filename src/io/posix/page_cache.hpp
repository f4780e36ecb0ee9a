// What Linux and its kin tell about an open file.
#pragma once

#include <cstdint>
#include <optional>

namespace safetensors::io {

/// Whether the file lies behind a network, or on a file system in user space. False when the
/// system does not tell.
[[nodiscard]] bool is_remote(int fd) noexcept;

/// Bytes of the file's first `nbytes` that are in the page cache, where one call of the system says
/// so, whatever the size.
[[nodiscard]] std::optional<std::uint64_t> cached_nbytes_at_once(int fd,
                                                                 std::uint64_t nbytes) noexcept;

/// The same, by a slower way where there is no such call; all of them when the system does not
/// tell.
[[nodiscard]] std::uint64_t cached_nbytes(int fd, std::uint64_t nbytes) noexcept;

}  // namespace safetensors::io

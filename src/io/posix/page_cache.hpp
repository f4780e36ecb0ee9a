// Where an open file is: on a network, in the page cache.
#pragma once

#include <cstdint>
#include <optional>

namespace safetensors::io {

/// Returns whether the file is on a network file system, or on one in user space. Returns false if
/// the system does not say.
[[nodiscard]] bool is_remote(int fd) noexcept;

/// Returns how many of the file's first `nbytes` bytes are in the page cache, if one system call
/// can say so for any size (Linux 6.5).
[[nodiscard]] std::optional<std::uint64_t> cached_nbytes_at_once(int fd,
                                                                 std::uint64_t nbytes) noexcept;

/// Returns the same, using a slower method where there is no such call; `nbytes` if the system does
/// not say.
[[nodiscard]] std::uint64_t cached_nbytes(int fd, std::uint64_t nbytes) noexcept;

}  // namespace safetensors::io

// Where an open file is: on a network, in the page cache.
#pragma once

#include <cstdint>

namespace safetensors::io {

#if defined(__linux__)
/// Returns the number of the type of file system that a file is on, as in linux/magic.h; 0 if the
/// system does not say.
[[nodiscard]] std::uint32_t file_system_of(int fd) noexcept;
#endif

/// Returns whether the file is on a network file system, or on one in user space. Returns false if
/// the system does not say.
[[nodiscard]] bool is_remote(int fd) noexcept;

/// Returns whether half of the file's first `nbytes` bytes are in the page cache, by samples of a
/// large file; true if the system does not say.
[[nodiscard]] bool is_half_cached(int fd, std::uint64_t nbytes) noexcept;

/// Returns whether a range of the file, which is not empty, is in the page cache; false without a
/// system call that says so (Linux 6.5), and in files of overlayfs.
[[nodiscard]] bool is_cached(int fd, std::uint64_t offset, std::uint64_t nbytes) noexcept;

/// Returns how many of the file's first `nbytes` bytes are in the page cache; `nbytes` if the
/// system does not say.
[[nodiscard]] std::uint64_t cached_nbytes(int fd, std::uint64_t nbytes) noexcept;

}  // namespace safetensors::io

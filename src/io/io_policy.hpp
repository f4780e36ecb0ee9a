// How to read a file: by mapping or by reads, through the page cache or past it.
#pragma once

#include <cstdint>

namespace safetensors::io {

/// What the choice depends on.
struct FileInfo {
  bool is_remote = false;              ///< on a network file system, or one in user space
  std::uint64_t nbytes = 0;            ///< size of the file
  std::uint64_t memory_available = 0;  ///< bytes by which the page cache could grow
  std::uint64_t cached_nbytes = 0;     ///< bytes of the file that the page cache holds now
};

/// What Backend::kAuto does with a file.
enum class IoPolicy : std::uint8_t {
  kMap,         ///< page faults are cheap
  kWarmAndMap,  ///< each page fault is a network round trip: fill the page cache first
  kRead,        ///< likewise, and the file is too large for the page cache
};

/// Returns how much of the available memory to fill at most: other programs allocate, too.
[[nodiscard]] constexpr std::uint64_t room_in(std::uint64_t memory_available) noexcept {
  return memory_available / 10 * 9;
}

[[nodiscard]] IoPolicy choose_io_policy(const FileInfo& file) noexcept;

/// Returns whether to read a file for a device past the page cache: true if the page cache holds
/// less than half of the file and has no room to keep it. Reading through the cache is better
/// otherwise, since the next load of the same file then finds it there.
[[nodiscard]] bool should_bypass_page_cache(const FileInfo& file) noexcept;

/// Returns whether Linux's `statfs.f_type` belongs to a network file system or to one in user
/// space. The numbers are those of linux/magic.h and of the file systems' own sources.
[[nodiscard]] bool is_remote_type(std::uint64_t f_type) noexcept;

}  // namespace safetensors::io

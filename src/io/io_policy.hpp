// How a file is best reached: what it lies on, how much of it is in memory, what room there is.
#pragma once

#include <cstdint>

#include "io/file_source.hpp"

namespace safetensors::io {

/// What Backend::kAuto goes by.
struct FileFacts {
  bool is_remote = false;              ///< behind a network, or a file system in user space
  std::uint64_t nbytes = 0;            ///< of the file
  std::uint64_t memory_available = 0;  ///< bytes that the page cache could take
  std::uint64_t cached_nbytes = 0;     ///< of the file, in the page cache by now
};

enum class AutoPlan : std::uint8_t {
  kMap,         ///< page faults are cheap
  kWarmAndMap,  ///< a fault is a journey: bring the file into the page cache before
  kRead,        ///< likewise, but the page cache could not keep it
};

[[nodiscard]] AutoPlan plan_auto(const FileFacts& facts) noexcept;

/// Whether a file that is read for a device is better read past the page cache, which could not
/// keep it, and does not have it. Else the next load of the same file finds it there.
[[nodiscard]] bool is_read_past_cache(const FileFacts& facts) noexcept;

/// Whether Linux's `statfs.f_type` is that of a file system behind a network or in user space.
/// The numbers are those of linux/magic.h and of the file systems' own sources.
[[nodiscard]] bool is_remote_type(std::uint64_t f_type) noexcept;

/// Memory that can be had without swapping, in bytes, within the limits set for this process;
/// the largest number when that cannot be told.
[[nodiscard]] std::uint64_t memory_available();

/// Reads [begin, end) of the source into nothing, so that the system keeps it in its page cache.
void warm(const ByteSource& source, std::uint64_t begin, std::uint64_t end,
          const Interrupt& interrupt);

}  // namespace safetensors::io

// Huge pages that the kernel has at hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace safetensors::io {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Returns how many blocks of the size of a huge page are free, from the text of /proc/buddyinfo,
/// which counts free blocks of 1, 2, 4, ... pages of `page_size` bytes in each zone.
[[nodiscard]] std::uint64_t free_huge_pages(std::string_view buddyinfo,
                                            std::size_t page_size) noexcept;

/// Returns how many of `wanted` huge pages the kernel can probably hand out without moving other
/// pages, and counts them as taken. For memory that is advised now and touched soon.
///
/// A process that asks for more huge pages than are free waits at its page faults until the kernel
/// has moved what lies between free pages (compaction), which may take longer than all that huge
/// pages save.
///
/// Thread safety: may be called from many threads.
[[nodiscard]] std::uint64_t take_huge_pages(std::uint64_t wanted) noexcept;

}  // namespace safetensors::io

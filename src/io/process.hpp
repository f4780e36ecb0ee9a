// The process, as the system sees it.
#pragma once

#include <cstddef>
#include <span>

namespace safetensors::io {

/// Processors that this process may use, by its affinity and the limits set for it.
[[nodiscard]] unsigned processor_count() noexcept;

/// Bytes of a page of memory.
[[nodiscard]] std::size_t page_size() noexcept;

/// Returns how many bytes of memory can be allocated without swapping, within the limits set for
/// this process; the largest number if the system does not say.
[[nodiscard]] std::uint64_t memory_available();

/// Says whether processes that are forked later get a copy of whole pages, as is usual, or no
/// memory at all in their place. False when the system cannot do so.
[[nodiscard]] bool copy_on_fork(std::span<std::byte> pages, bool is_copied) noexcept;

}  // namespace safetensors::io

// Memory that the system has not provided yet.
#pragma once

#include <cstddef>
#include <span>

namespace safetensors::io {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Has the system provide the whole pages of memory that this thread is about to fill, in one call:
/// a fault for each page takes longer. Huge pages are asked for while they come quickly.
///
/// Does nothing below 256 KiB, if the first whole page exists, and where there is no such call
/// (Linux has it since 5.14).
///
/// Thread safety: may be called from many threads, for different memory.
void provide_pages(std::span<std::byte> memory) noexcept;

}  // namespace safetensors::io

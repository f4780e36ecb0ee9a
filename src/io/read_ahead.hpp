// Bringing files into the page cache before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "safetensors/byte_source.hpp"
#include "safetensors/mapped_file.hpp"

namespace safetensors::io {

/// Reads [begin, end) of the source and discards the bytes: the system keeps them in its page
/// cache. Throws what read_at throws.
void discard(const ByteSource& source, std::uint64_t begin, std::uint64_t end);

/// Does the same with several threads. Throws what read_at and `interrupt` throw.
void warm(const ByteSource& source, std::uint64_t begin, std::uint64_t end,
          const Interrupt& interrupt);

/// Returns whether these bytes of a mapping are all in the page cache; false on systems other than
/// Linux. Linux always says so of a file that this process neither owns nor may write.
[[nodiscard]] bool is_resident(std::span<const std::byte> mapped) noexcept;

/// Returns how many bytes of mapped files of `nbytes` in all may have been read ahead once the
/// process has touched `touched` bytes of them:
///   0 before it has touched an eighth of them (at least 4, at most 256 MiB), and if there is no
///     room_in() the available memory for them;
///   then twice what it has touched, but at most 64 MiB more than that.
[[nodiscard]] std::uint64_t read_ahead_limit(std::uint64_t touched, std::uint64_t nbytes,
                                             std::uint64_t memory_available) noexcept;

/// Starts a background thread that brings the file into the page cache from `begin` on, at the pace
/// at which the process touches pages, until the mapping is released. The call itself reads
/// nothing. Does nothing if the file is cached already, if no thread can be started, and on systems
/// other than Linux.
void read_ahead(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin) noexcept;

}  // namespace safetensors::io

// The length field: the 8 bytes before the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace safetensors::format {

/// How many of a file's first bytes are needed to recognise its format.
inline constexpr std::size_t kStartSize = 64;

/// Returns the header's length, checked against the limit and the file's size. `start` holds the
/// first kStartSize bytes of the file, or all if it has fewer.
/// Throws: Error kHeaderTooSmall, kHeaderTooLarge, or kInvalidHeaderLength. The text names the
///   format of a file of another well-known format.
[[nodiscard]] std::uint64_t read_header_length(std::span<const std::byte> start,
                                               std::uint64_t file_nbytes);

}  // namespace safetensors::format

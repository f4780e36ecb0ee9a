// The 8 bytes before the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace safetensors::format {

/// So much of a file's start tells what kind of file it is.
inline constexpr std::size_t kStartSize = 64;

/// The header's length, checked against the limit and the file's size. `start` holds the file's
/// first bytes, kStartSize or all there are. Throws Error; the text says so when the file is
/// recognisably of another format.
[[nodiscard]] std::uint64_t read_header_length(std::span<const std::byte> start,
                                               std::uint64_t file_nbytes);

}  // namespace safetensors::format

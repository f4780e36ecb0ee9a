// Reading mapped files ahead of a program that goes through all of them.
#pragma once

#include <cstdint>
#include <memory>

#include "safetensors/mapped_file.hpp"

namespace safetensors::io {

/// Bytes of files of `nbytes` that may have been read ahead by the time that the process has
/// touched `touched` bytes of files: none before it has touched an eighth, but 4 to 256 MiB, nor
/// when memory has no room for the files; else as many again, but at most 64 MiB beyond what it has
/// touched.
[[nodiscard]] std::uint64_t read_ahead_limit(std::uint64_t touched, std::uint64_t nbytes,
                                             std::uint64_t memory_available) noexcept;

/// Lets a thread of the process's own bring the file into the page cache, from `begin` on, as fast
/// as the process touches pages and while the mapping lives. Does nothing when the file is there
/// already, when no thread can be had, and on systems other than Linux. Reads nothing itself.
void read_ahead(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin) noexcept;

}  // namespace safetensors::io

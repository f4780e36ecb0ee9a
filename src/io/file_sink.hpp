// Atomic writing of files. Implemented in posix/ and windows/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "safetensors/buffer.hpp"

namespace safetensors::io {

/// The content of a file to be written.
struct FileContent {
  std::vector<std::span<const std::byte>> pieces;  ///< in order
  std::uint64_t total_nbytes = 0;
};

struct WriteOptions {
  bool fsync = false;
  const Interrupt& interrupt;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Writes `content` to `path`, atomically where the system allows it: see save_file() in
/// include/safetensors/save.hpp.
/// Throws: Error kIo, kNotRegularFile, or kInvalidArgument (the path contains a NUL); what
///   `interrupt` and `progress` throw.
void write_file(const std::filesystem::path& path, const FileContent& content,
                const WriteOptions& options);

}  // namespace safetensors::io

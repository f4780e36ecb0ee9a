// Writing a file whole or not at all. One declaration, one implementation for each system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "safetensors/buffer.hpp"

namespace safetensors::io {

/// What a file is to hold.
struct FileContent {
  std::vector<std::span<const std::byte>> pieces;  ///< in order
  std::uint64_t total_nbytes = 0;
};

struct WriteOptions {
  bool fsync = false;
  const Interrupt& interrupt;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Makes `path` hold `content`; include/safetensors/save.hpp says how. Throws Error: kIo,
/// kNotRegularFile, kInvalidArgument (a NUL in the path).
void write_file(const std::filesystem::path& path, const FileContent& content,
                const WriteOptions& options);

}  // namespace safetensors::io

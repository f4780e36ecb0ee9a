// Writing many pieces with few system calls.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "io/file_writer.hpp"

namespace safetensors::io {

/// Hands bytes to the system and says how many it took; 0 is to try again. Throws Error.
using WriteSome = std::function<std::size_t(std::span<const std::byte>)>;

/// Writes all pieces in order, small ones gathered, and reports the progress.
void write_gathered(const FileContent& content, const WriteOptions& options,
                    const WriteSome& write_some);

}  // namespace safetensors::io

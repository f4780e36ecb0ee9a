// Writing many pieces with few system calls.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "io/file_writer.hpp"

namespace safetensors::io {

/// Writes the first of these bytes. Returns how many were written; 0 if the call is to be repeated.
/// Throws: Error.
using WriteSome = std::function<std::size_t(std::span<const std::byte>)>;

/// Writes all pieces in order, coalescing small ones, and reports the progress.
/// Throws: what `write_some`, and the interrupt and progress of `options`, throw.
void write_gathered(const FileContent& content, const WriteOptions& options,
                    const WriteSome& write_some);

}  // namespace safetensors::io

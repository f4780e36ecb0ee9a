// Writing many pieces to a handle.
#pragma once

#include <filesystem>

#include "io/file_writer.hpp"
#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Writes all pieces in order, coalescing small ones, and reports the progress. Both functions
/// throw Error kIo, with the path.
void write_pieces(HANDLE handle, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options);

/// Blocks until the file's data is on the disk.
void flush(HANDLE handle, const std::filesystem::path& path);

}  // namespace safetensors::io

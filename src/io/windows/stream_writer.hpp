// Writing many pieces to a handle.
#pragma once

#include <filesystem>

#include "io/file_writer.hpp"
#include "io/windows/handle.hpp"

namespace safetensors::io {

/// Writes all pieces in order, small ones gathered, and reports the progress.
void write_pieces(HANDLE handle, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options);

/// Waits until the file's data is on the disk.
void flush(HANDLE handle, const std::filesystem::path& path);

}  // namespace safetensors::io

// Writing many pieces to a descriptor.
#pragma once

#include <filesystem>

#include "io/file_writer.hpp"
#include "io/posix/fd.hpp"

namespace safetensors::io {

/// Writes all pieces in order, small ones gathered.
void write_pieces(int fd, const FileContent& content, const std::filesystem::path& path,
                  const Interrupt& interrupt);

/// Waits until the file's data is on the disk.
void flush(int fd, const std::filesystem::path& path);

/// Closes and reports: some file systems say only then that there was no room.
void close_checked(Fd fd, const std::filesystem::path& path);

}  // namespace safetensors::io

// Writing many pieces to a descriptor.
#pragma once

#include <cstdint>
#include <filesystem>

#include "io/file_writer.hpp"
#include "io/posix/fd.hpp"

namespace safetensors::io {

/// Writes all pieces in order, small ones gathered, and reports the progress.
void write_pieces(int fd, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options);

/// Waits until the file's data is on the disk.
void flush(int fd, const std::filesystem::path& path);

/// The folder of `path`, to flush what it says about the file; not open when it may not be read.
[[nodiscard]] Fd open_folder(const std::filesystem::path& path);

/// Waits until the names in a folder are on the disk, where the file system can.
void flush_folder(int fd, const std::filesystem::path& path);

/// Sets space aside, where the file system can; the file's size stays when `keep_size`. Throws
/// Error kIo when there is not enough.
void reserve(int fd, std::uint64_t nbytes, bool keep_size, const std::filesystem::path& path);

/// Closes and reports: some file systems say only then that there was no room.
void close_checked(Fd fd, const std::filesystem::path& path);

}  // namespace safetensors::io

// Writing many pieces to a descriptor.
#pragma once

#include <cstdint>
#include <filesystem>

#include "io/file_writer.hpp"
#include "io/posix/fd.hpp"

namespace safetensors::io {

/// Writes all pieces in order, coalescing small ones, and reports the progress. All functions here
/// throw Error kIo, with the path.
void write_pieces(int fd, const FileContent& content, const std::filesystem::path& path,
                  const WriteOptions& options);

/// Blocks until the file's data is on the disk.
void flush(int fd, const std::filesystem::path& path);

/// Opens the directory of `path`, for flush_folder(). The result is not open if this process may
/// not read the directory.
[[nodiscard]] Fd open_folder(const std::filesystem::path& path);

/// Blocks until the names in a directory are on the disk, if the file system supports that.
void flush_folder(int fd, const std::filesystem::path& path);

/// Reserves disk space, if the file system supports that. With `keep_size` the file's size does not
/// change.
void reserve(int fd, std::uint64_t nbytes, bool keep_size, const std::filesystem::path& path);

/// Closes the file and checks for errors: some file systems only then report that the disk is full.
void close_checked(Fd fd, const std::filesystem::path& path);

}  // namespace safetensors::io

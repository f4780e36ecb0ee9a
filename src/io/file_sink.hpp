// Sinks for paths. Implemented in posix/ and windows/.
#pragma once

#include <filesystem>
#include <memory>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/error.hpp"

namespace safetensors::io {

/// Thrown by make_file_sink() and by its sink's commit() if the system does not allow to replace
/// the file, which may still be writable: no right to create files, a mount point, no rename.
class CannotReplace final : public Error {
 public:
  explicit CannotReplace(const Error& error) : Error(error) {}
};

#if defined(_WIN32)
/// A file that has sums. Nobody could rename its folder while that is held open.
using FileWithSums = std::filesystem::path;
#else
/// A file that has sums, in a folder that is held open and may have another path by now.
using FileWithSums = detail::OwnPlace;
#endif

/// Removes a file. Returns 0, or the errno.
[[nodiscard]] int remove_file(const std::filesystem::path& path) noexcept;

/// Removes the sums of a file as the public remove_sums().
void remove_sums(const FileWithSums& file);

/// Removes sums that were put beside a file between the removal of its old sums and its renaming,
/// by somebody who saved the file at the same time. Leaves what cannot be removed.
void remove_late_sums(const FileWithSums& file) noexcept;

/// Returns whether the path names a descriptor, such as /proc/self/fd/3 or /dev/stdout, that has a
/// regular file open. Who names a descriptor wants that file, and not another of its name.
/// Throws: Error kIo.
[[nodiscard]] bool names_open_file(const std::filesystem::path& path);

/// Returns a sink that overwrites a file, or creates it under its own name. Not atomic: for files
/// that cannot be replaced.
///
/// What this process has mapped of the file keeps its values. On Linux its pages are copied first.
/// On Windows a mapped file is refused. Elsewhere the sink keeps everything in memory until
/// commit(), because the tensors to be written may be views of the file.
/// Throws: Error kIo, before anything is overwritten; what `interrupt` throws.
[[nodiscard]] std::unique_ptr<ByteSink> make_overwriting_sink(const std::filesystem::path& path,
                                                              const Interrupt& interrupt);

}  // namespace safetensors::io

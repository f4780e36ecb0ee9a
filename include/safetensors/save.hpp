// Writing files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"

namespace safetensors {

/// Options of save_file().
struct SaveOptions {
  /// Flush the file and its directory entry to the disk before returning.
  bool fsync = false;
  /// Write the sums of the file, too, as sums_path() names them: see docs/verify.md. They take
  /// their name after the file. Saves without sums remove old ones.
  bool sums = false;
  Interrupt interrupt = {};
  /// Called on the calling thread, after each write of at most 16 MiB, with the bytes written and
  /// the size of the file. In the last call they are equal, and the file does not have its name
  /// yet. To stop the save, throw: the save is undone and rethrows the exception. If the file
  /// cannot be renamed and is written in place instead, `done` starts from 0 again.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Writes a file atomically: the data goes to a temporary file in the same directory, which is then
/// renamed over `path`. If anything fails, the temporary file is removed and an existing file stays
/// as it was. docs/format.md, "Saving", lists what is kept of a replaced file, and when a write
/// that is not atomic is used instead.
///
/// Throws: Error kIo with os_error(), kNotRegularFile (a directory, a socket, a block device), or
///   kInvalidArgument (the path contains a NUL, or does not end with .safetensors although sums are
///   wanted); what plan_layout, `interrupt` and `progress` throw.
/// Thread safety: may be called from many threads. If two write one path, the last to finish
///   replaces the whole file.
SAFETENSORS_API void save_file(std::span<const TensorData> tensors,
                               const std::filesystem::path& path,
                               const Metadata* metadata = nullptr, const SaveOptions& options = {});

/// Writes the file that `plan` describes to memory.
///
/// Requires: `tensors` are those that the plan was made from.
/// Throws: Error kInvalidArgument if `to` has not plan.total_nbytes bytes; what `interrupt` throws.
SAFETENSORS_API void serialize_to(const LayoutPlan& plan, std::span<const TensorData> tensors,
                                  std::span<std::byte> to, const Interrupt& interrupt = {});

/// Returns the bytes of a file.
///
/// Throws: Error kOutOfMemory; what plan_layout and `interrupt` throw.
[[nodiscard]] SAFETENSORS_API Buffer serialize(std::span<const TensorData> tensors,
                                               const Metadata* metadata = nullptr,
                                               const Interrupt& interrupt = {});

}  // namespace safetensors

// Changes tensors of a file that exists.
//
//     const std::vector<float> bias = {1, 2, 3};
//     const TensorData tensors[] = {tensor_data("bias", {3}, bias)};
//     update_file("model.safetensors", tensors);
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"

namespace safetensors {

/// Options of update_file().
///
/// Lifetime: `remove` and `metadata` are used during the call only.
struct UpdateOptions {
  /// Write the new values into the file itself, without space for a second file, and remove its
  /// sums. Only values can change then. Not on Windows.
  bool in_place = false;
  /// With `in_place`: change the file although it may be open or mapped, by this program or others.
  /// Views of its pages then change, too. Without it, the file must not be in use, which only Linux
  /// tells, and not on overlayfs.
  bool shared = false;
  /// Add the tensors that the file does not have at its end. Otherwise they are an error.
  bool add = false;
  /// The tensors to remove.
  std::span<const std::string_view> remove = {};
  /// The new metadata of the header; nullptr keeps what the file has.
  const Metadata* metadata = nullptr;
  bool remove_metadata = false;
  /// Flush the file and its directory entry to the disk before returning. Always so with
  /// `in_place`.
  bool fsync = false;
  /// Write the sums of the new file, too, as SaveOptions::sums.
  bool sums = false;
  /// With `in_place`, called until the file is marked. After that the change is completed.
  Interrupt interrupt = {};
  /// As WriterOptions::progress; with `in_place` of the bytes of the changed tensors.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Gives tensors of a file new values, which have the dtypes and shapes of those in the file.
///
/// Writes a new file, which replaces the old one when it is complete: if this throws, the file is
/// as it was. Where the file system can do that (btrfs, XFS and others), the unchanged tensors
/// share their disk space with the old file; elsewhere the system copies them.
///
/// With `in_place`, the change is flushed to a journal beside the file first. After a kill or a
/// power failure, no reader takes the file for a valid one until recover(), or the next change of
/// the file, has completed the change (docs/format.md, "Changes in place"). The file must not be a
/// symbolic link, or have several names.
///
/// Throws: Error kTensorNotFound, unless `add`; kInvalidArgument if a tensor has another dtype or
///   shape, is both changed and removed, or is removed twice, or if the options do not suit each
///   other or the path; kDuplicateName; kFileChanged if another program changed or replaced the
///   file meanwhile; what SafeOpen, plan_file() and FileWriter throw. With `in_place` also
///   kInvalidArgument if the file is in use, several names lead to it, or another process changes
///   it; kNotRegularFile for a link; what recover() throws. After kIo in place, recover() may have
///   to complete the change.
SAFETENSORS_API void update_file(const std::filesystem::path& path,
                                 std::span<const TensorData> tensors,
                                 const UpdateOptions& options = {});

}  // namespace safetensors

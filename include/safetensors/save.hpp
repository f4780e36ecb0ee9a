// Writing files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// A tensor to be written: views of memory that the caller keeps alive and unchanged for the call.
struct TensorData {
  std::string_view name;                 ///< UTF-8
  std::span<const std::uint64_t> shape;  ///< elements along each axis
  std::span<const std::byte> bytes;      ///< little-endian, C order
  Dtype dtype = Dtype::kU8;
};

/// Metadata to be written. Sorted, so that the same input gives the same file.
using Metadata = std::map<std::string, std::string, std::less<>>;

/// Where everything goes. A pure function of its input.
struct LayoutPlan {
  std::string prologue;            ///< 8 length bytes and the header, padded with spaces to 8
  std::vector<std::size_t> order;  ///< indices of the tensors, in file order
  std::uint64_t total_nbytes = 0;  ///< of the file
};

/// Plans a file: tensors by dtype (see Dtype), then name. `metadata` may be nullptr: then there is
/// none, while an empty map is written as an empty object.
/// Throws Error: kInvalidTensorInfo, kOverflow, kMisalignedSlice, kDuplicateName, kInvalidArgument
/// (a name that is kMetadataKey, or not UTF-8), kHeaderTooLarge. The texts name the tensor.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_layout(std::span<const TensorData> tensors,
                                                     const Metadata* metadata = nullptr);

struct SaveOptions {
  /// Flush the file, and the folder's entry for it, to the disk before returning.
  bool fsync = false;
  Interrupt interrupt = {};
};

/// Writes a file: whole or not at all. A temporary file in the same folder takes the data and is
/// renamed over `path`; on any failure it is removed and an old file stays as it was.
/// docs/format.md, "Saving", says what is kept of a replaced file, and when a plain write that is
/// not atomic takes its place. Safe to call from many threads; of two writers of one path the last
/// wins whole. Throws Error (kIo with os_error(), and what plan_layout throws).
SAFETENSORS_API void save_file(std::span<const TensorData> tensors,
                               const std::filesystem::path& path,
                               const Metadata* metadata = nullptr, const SaveOptions& options = {});

/// Writes the file that `plan` describes to `to`, which has plan.total_nbytes bytes. `tensors` are
/// those the plan was made of.
SAFETENSORS_API void serialize_to(const LayoutPlan& plan, std::span<const TensorData> tensors,
                                  std::span<std::byte> to, const Interrupt& interrupt = {});

/// The file's bytes in memory. Throws what plan_layout throws, and Error kOutOfMemory.
[[nodiscard]] SAFETENSORS_API Buffer serialize(std::span<const TensorData> tensors,
                                               const Metadata* metadata = nullptr,
                                               const Interrupt& interrupt = {});

}  // namespace safetensors

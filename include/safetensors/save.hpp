// Writing files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/element.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// A tensor to be written.
///
/// Lifetime: views of memory that the caller keeps valid and unchanged during the call.
struct TensorData {
  std::string_view name;                 ///< UTF-8
  std::span<const std::uint64_t> shape;  ///< elements along each axis
  std::span<const std::byte> bytes;      ///< little-endian, C order
  Dtype dtype = Dtype::kU8;
};

/// Returns a tensor for save_file whose elements are `values`, a vector, array or span. Their type
/// determines the dtype: F32 for float, BOOL for bool, and so on (see dtype_of). For dtypes without
/// a C++ type, make a TensorData of the bytes.
///
/// Throws: Error kInvalidArgument on big-endian machines, unless the elements are single bytes.
/// Lifetime: the result views all arguments.
template <std::ranges::contiguous_range Range>
  requires(std::ranges::sized_range<Range> && std::ranges::borrowed_range<Range> &&
           dtype_of<std::ranges::range_value_t<Range>>().has_value())
[[nodiscard]] TensorData tensor_data(std::string_view name, std::span<const std::uint64_t> shape,
                                     Range&& values) {
  using Value = std::ranges::range_value_t<Range>;
  if constexpr (!detail::kInFileOrder<Value>) {
    fail(ErrorCode::kInvalidArgument, "files are little-endian, this machine is not");
  }
  return {name, shape, std::as_bytes(std::span(values)), *dtype_of<Value>()};
}

/// Metadata to be written. Sorted, so that the same input gives the same bytes.
using Metadata = std::map<std::string, std::string, std::less<>>;

/// The layout of a file to be written.
struct LayoutPlan {
  std::string prologue;            ///< 8 length bytes and the header, padded with spaces to 8
  std::vector<std::size_t> order;  ///< indices of the tensors, in file order
  std::uint64_t total_nbytes = 0;  ///< of the file
};

/// Plans a file: tensors sorted by dtype (in the order of Dtype), then by name. A pure function of
/// its input. If `metadata` is nullptr the header has no metadata; an empty map is written as an
/// empty object.
///
/// Throws: Error kInvalidTensorInfo, kOverflow, kMisalignedSlice, kDuplicateName, kHeaderTooLarge,
///   kInvalidArgument (a name is kMetadataKey, or not UTF-8), or kUnsupportedDtype (a dtype is none
///   of Dtype's enumerators). The texts name the tensor.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_layout(std::span<const TensorData> tensors,
                                                     const Metadata* metadata = nullptr);

struct SaveOptions {
  /// Flush the file and its directory entry to the disk before returning.
  bool fsync = false;
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
///   kInvalidArgument (the path contains a NUL); what plan_layout, `interrupt` and `progress`
///   throw.
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

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

/// A tensor to be written: views of memory that the caller keeps alive and unchanged for the call.
struct TensorData {
  std::string_view name;                 ///< UTF-8
  std::span<const std::uint64_t> shape;  ///< elements along each axis
  std::span<const std::byte> bytes;      ///< little-endian, C order
  Dtype dtype = Dtype::kU8;
};

/// The tensor of that name whose elements are `values`, a vector, array or span, as save_file takes
/// it. Their type says the dtype: F32 for float, BOOL for bool, and so on (dtype_of); for dtypes
/// without a C++ type of their own make a TensorData of the bytes. Views its arguments. Throws
/// Error kInvalidArgument on big-endian machines, whose values of several bytes are not the file's
/// bytes.
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
/// (a name that is kMetadataKey, or not UTF-8), kUnsupportedDtype (a dtype that is none of Dtype's
/// enumerators), kHeaderTooLarge. The texts name the tensor.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_layout(std::span<const TensorData> tensors,
                                                     const Metadata* metadata = nullptr);

struct SaveOptions {
  /// Flush the file, and the folder's entry for it, to the disk before returning.
  bool fsync = false;
  Interrupt interrupt = {};
  /// Called now and then, on the thread that called, with the bytes that are written and those of
  /// the whole file. In the last call they are equal; the file does not have its name yet. To stop
  /// the save, throw: it is undone, and the exception passes through. Where the file cannot be
  /// renamed and is written in place after all, `done` starts from 0 again.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// Writes a file: whole or not at all. A temporary file in the same folder takes the data and is
/// renamed over `path`; on any failure it is removed and an old file stays as it was.
/// docs/format.md, "Saving", says what is kept of a replaced file, and when a plain write that is
/// not atomic takes its place. Safe to call from many threads; of two writers of one path the last
/// wins whole. Throws Error: kIo with os_error(), kNotRegularFile (a directory, a socket, a block
/// device), kInvalidArgument (a NUL in the path), and what plan_layout throws.
SAFETENSORS_API void save_file(std::span<const TensorData> tensors,
                               const std::filesystem::path& path,
                               const Metadata* metadata = nullptr, const SaveOptions& options = {});

/// Writes the file that `plan` describes to `to`, which has plan.total_nbytes bytes. `tensors` are
/// those the plan was made of. Throws Error kInvalidArgument when `to` has another size.
SAFETENSORS_API void serialize_to(const LayoutPlan& plan, std::span<const TensorData> tensors,
                                  std::span<std::byte> to, const Interrupt& interrupt = {});

/// The file's bytes in memory. Throws what plan_layout throws, and Error kOutOfMemory.
[[nodiscard]] SAFETENSORS_API Buffer serialize(std::span<const TensorData> tensors,
                                               const Metadata* metadata = nullptr,
                                               const Interrupt& interrupt = {});

}  // namespace safetensors

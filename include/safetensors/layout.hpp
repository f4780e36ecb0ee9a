// What a file to be written holds, and where. Pure functions of tensors: no file is opened.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "safetensors/dtype.hpp"
#include "safetensors/element.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

/// The elements along each axis of a tensor to be written: a view of a vector, array or span of
/// std::uint64_t, or a copy of a list in braces, as in `tensor_data("w", {2, 3}, values)`. Without
/// axes it is that of a scalar. Copies share what a list was copied to.
///
/// Lifetime: the caller keeps a vector, array or span valid and unchanged. A moved-from Shape may
///   only be destroyed or assigned to.
class Shape {
 public:
  Shape() noexcept = default;
  /// Copies a list. Throws: std::bad_alloc.
  Shape(std::initializer_list<std::uint64_t> axes)
      : copy_(std::make_shared<std::uint64_t[]>(axes.size())), axes_(copy_.get(), axes.size()) {
    std::ranges::copy(axes, copy_.get());
  }
  /// Views the elements of `axes`, which is no temporary that owns them.
  template <std::ranges::contiguous_range Range>
    requires(std::ranges::sized_range<Range> && !Temporary<Range&&> &&
             !std::same_as<std::remove_cvref_t<Range>, Shape> &&
             std::same_as<std::ranges::range_value_t<Range>, std::uint64_t>)
  Shape(Range&& axes) noexcept : axes_(std::ranges::data(axes), std::ranges::size(axes)) {}

  [[nodiscard]] const std::uint64_t* data() const noexcept { return axes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return axes_.size(); }
  [[nodiscard]] bool empty() const noexcept { return axes_.empty(); }
  [[nodiscard]] auto begin() const noexcept { return axes_.begin(); }
  [[nodiscard]] auto end() const noexcept { return axes_.end(); }
  /// Requires: axis < size().
  [[nodiscard]] std::uint64_t operator[](std::size_t axis) const noexcept { return axes_[axis]; }

 private:
  std::shared_ptr<std::uint64_t[]> copy_;
  std::span<const std::uint64_t> axes_;
};

/// A tensor of a file to be written, without its bytes.
///
/// Lifetime: views of memory that the caller keeps valid and unchanged during the call.
struct TensorSpec {
  std::string_view name;  ///< UTF-8
  Shape shape;
  Dtype dtype = Dtype::kU8;
};

/// A tensor to be written.
///
/// Lifetime: views of memory that the caller keeps valid and unchanged during the call.
struct TensorData {
  std::string_view name;  ///< UTF-8
  Shape shape;
  std::span<const std::byte> bytes;  ///< little-endian, C order
  Dtype dtype = Dtype::kU8;
};

namespace detail {
/// Returns the tensor. Throws: what plan_layout() throws about a single tensor.
[[nodiscard]] SAFETENSORS_API TensorData checked(TensorData tensor);
}  // namespace detail

/// Returns a tensor for save_file whose elements are `values`, a vector, array or span. Their type
/// determines the dtype: F32 for float, BOOL for bool, and so on (see dtype_of). For dtypes without
/// a C++ type, make a TensorData of the bytes.
///
///     tensor_data("weight", {2, 3}, values)
///
/// Throws: Error kInvalidTensorInfo if `values` are not as many as the shape says, and what else
///   plan_layout() throws about a single tensor; kInvalidArgument on big-endian machines, unless
///   the elements are single bytes.
/// Lifetime: the result views the name and the values; see Shape.
template <std::ranges::contiguous_range Range>
  requires(std::ranges::sized_range<Range> && std::ranges::borrowed_range<Range> &&
           dtype_of<std::ranges::range_value_t<Range>>().has_value())
[[nodiscard]] TensorData tensor_data(std::string_view name, Shape shape, Range&& values) {
  using Value = std::ranges::range_value_t<Range>;
  if constexpr (!detail::kInFileOrder<Value>) {
    fail(ErrorCode::kInvalidArgument, "files are little-endian, this machine is not");
  }
  return detail::checked(
      {name, std::move(shape), std::as_bytes(std::span(values)), *dtype_of<Value>()});
}
template <Temporary Name, typename Range>
TensorData tensor_data(Name&&, Shape, Range&&) = delete;

/// Metadata to be written. Sorted, so that the same input gives the same bytes.
using Metadata = std::map<std::string, std::string, std::less<>>;

/// The order of the tensors in a file.
enum class Layout : std::uint8_t {
  /// By dtype (in the order of Dtype), then by name: the bytes of save_file.
  kCanonical,
  /// For files whose tensors are copied by sharing blocks (FileWriter::copy). The header is padded
  /// until the data begins at a multiple of kBlockSize; tensors whose size is a multiple of it come
  /// first, so that each of them consists of whole blocks. In both groups as kCanonical.
  kBlocks,
  /// In the order given.
  kGiven,
};

/// The size of the blocks that file systems share between files.
inline constexpr std::uint64_t kBlockSize = 4096;

/// Where a tensor is in a file.
struct TensorPlace {
  std::uint64_t begin = 0;  ///< offset of its first byte in the file
  std::uint64_t nbytes = 0;
};

/// The layout of a file to be written.
struct LayoutPlan {
  std::string prologue;             ///< 8 length bytes and the header, padded with spaces to 8
  std::vector<std::size_t> order;   ///< indices of the tensors, in file order
  std::vector<TensorPlace> places;  ///< of each tensor, by index
  std::uint64_t total_nbytes = 0;   ///< of the file
};

/// Plans a file with the canonical layout. A pure function of its input. If `metadata` is nullptr
/// the header has no metadata; an empty map is written as an empty object.
///
/// Throws: Error kInvalidTensorInfo, kOverflow, kMisalignedSlice, kDuplicateName, kHeaderTooLarge,
///   kInvalidArgument (a name is kMetadataKey, or not UTF-8), or kUnsupportedDtype (a dtype is none
///   of Dtype's enumerators). The texts name the tensor.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_layout(std::span<const TensorData> tensors,
                                                     const Metadata* metadata = nullptr);
/// Plans a file of tensors whose bytes come later (FileWriter). The header is padded until the data
/// begins at offset `data_begin`, or, if it is longer, the least multiple of kBlockSize beyond it,
/// so that a changed copy of a file can share its blocks. 0 leaves the padding to `layout`.
///
/// Throws: what plan_layout throws.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_file(std::span<const TensorSpec> tensors,
                                                   const Metadata* metadata = nullptr,
                                                   Layout layout = Layout::kCanonical,
                                                   std::uint64_t data_begin = 0);
/// Plans a file whose data section is written as one tensor, after these bytes.
[[nodiscard]] SAFETENSORS_API LayoutPlan plan_data(std::string prologue, std::uint64_t data_nbytes);

}  // namespace safetensors

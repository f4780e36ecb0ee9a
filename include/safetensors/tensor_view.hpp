// A tensor of an open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "safetensors/dtype.hpp"
#include "safetensors/element.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// A tensor: its name, shape and dtype, and shared ownership of the memory that holds its bytes.
/// Copying is cheap and copies no data.
///
/// Lifetime: valid while any copy of it lives, also after its SafeOpen is destroyed. A moved-from
///   view may only be destroyed or assigned to.
/// Thread safety: that of memory. Concurrent reads are safe; the caller orders writes.
class SAFETENSORS_API TensorView {
 public:
  /// Makes a view of `bytes`. `keeps_names` owns the name and the shape, `keeps_bytes` the bytes.
  TensorView(std::string_view tensor_name, Dtype tensor_dtype,
             std::span<const std::uint64_t> tensor_shape, std::span<std::byte> bytes,
             std::shared_ptr<const void> keeps_names, std::shared_ptr<const void> keeps_bytes)
      : name(tensor_name),
        shape(tensor_shape),
        dtype(tensor_dtype),
        bytes_(bytes),
        keeps_names_(std::move(keeps_names)),
        keeps_bytes_(std::move(keeps_bytes)) {}

  std::string_view name;                 ///< UTF-8
  std::span<const std::uint64_t> shape;  ///< elements along each axis; empty for a scalar
  Dtype dtype;

  /// Returns the tensor's bytes: little-endian, C order, of any alignment.
  [[nodiscard]] std::span<const std::byte> bytes() const& noexcept { return bytes_; }
  std::span<const std::byte> bytes() const&& = delete;  // would outlive its owner
  /// Returns the same bytes for writing; empty if they are read-only, as those of a MemorySource.
  /// Writing changes this process's private pages, never the file. Other views of the tensor see
  /// the change.
  [[nodiscard]] std::span<std::byte> writable_bytes() const& noexcept {
    return is_writable_ ? bytes_ : std::span<std::byte>();
  }
  std::span<std::byte> writable_bytes() const&& = delete;
  /// Returns the size in bytes.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return bytes_.size(); }
  /// Returns the number of elements: 1 for a scalar, 0 if `dtype` is none of Dtype's enumerators.
  [[nodiscard]] std::uint64_t element_count() const noexcept {
    const unsigned bits = bit_size(dtype);
    return bits == 0 ? 0 : std::uint64_t{bytes_.size()} * 8 / bits;
  }
  /// Returns the owner of the memory behind bytes(), for code that passes the bytes on.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return keeps_bytes_; }

  /// Returns the elements without a copy. `holds` says which types T fit which dtype.
  ///
  /// Throws: what elements() throws: Error kInvalidArgument for a type that does not fit, and for
  ///   bytes that are not aligned for it. Files need not align tensors: use copy_to then.
  /// Lifetime: valid as long as bytes().
  template <Element T>
  [[nodiscard]] std::span<const T> data() const& {
    return elements<T>(info(), bytes_, file_);
  }
  template <Element T>
  std::span<const T> data() const&& = delete;

  /// Copies the elements, aligned or not, to a vector, array or span, in this machine's byte order.
  ///
  /// Throws: Error kInvalidArgument if the element type of `to` does not fit the dtype, or its size
  ///   is not element_count().
  template <ElementRange Range>
  void copy_to(Range&& to) const {
    copy_elements(info(), bytes_, to, file_);
  }

  /// Returns a copy of the elements, aligned or not, in this machine's byte order. Unlike data(),
  /// it may be called on a temporary: `f.get_tensor("bias").to_vector<float>()`. to_float() also
  /// converts. There is no vector of bools in memory: see copy_to.
  ///
  /// Throws: Error kInvalidArgument if T does not fit the dtype; std::bad_alloc.
  template <Element T>
    requires(!std::is_same_v<T, bool>)
  [[nodiscard]] std::vector<T> to_vector() const {
    detail::check_type<T>(info(), file_);
    std::vector<T> values(bytes_.size() / sizeof(T));
    copy_to(values);
    return values;
  }

  /// Returns the part that `indices` select as a view of the same memory; nothing if its bytes are
  /// not contiguous there: then use copy_slice_to. Rows are contiguous, columns are not.
  ///
  /// Throws: what select_part throws.
  [[nodiscard]] std::optional<TensorView> slice(Indices indices) const;

  /// Copies the part that `indices` select, in C order, as copy_to does.
  ///
  /// Throws: what select_part and copy_to throw.
  template <ElementRange Range>
  void copy_slice_to(Indices indices, Range&& to) const {
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info(), file_);
    copy_slice_bytes(indices, std::as_writable_bytes(values));
    detail::to_values(values);
  }

 private:
  friend class SafeOpen;
  SAFETENSORS_API friend void to_float(const TensorView& tensor, std::span<float> to);

  [[nodiscard]] TensorInfo info() const noexcept { return {name, shape, 0, bytes_.size(), dtype}; }
  void copy_slice_bytes(Indices indices, std::span<std::byte> to) const;

  bool is_writable_ = true;
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> keeps_names_;
  std::shared_ptr<const void> keeps_bytes_;
  const std::filesystem::path* file_ = nullptr;  // for errors; keeps_names_ owns it
};

/// Converts the elements of a tensor to float: to_float() of its dtype and bytes, whose errors also
/// name the tensor and its file.
SAFETENSORS_API void to_float(const TensorView& tensor, std::span<float> to);
/// Returns the elements of a tensor as floats. Throws: what to_float() above throws;
/// std::bad_alloc.
[[nodiscard]] SAFETENSORS_API std::vector<float> to_float(const TensorView& tensor);

}  // namespace safetensors

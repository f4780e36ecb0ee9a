// A tensor of an open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "safetensors/dtype.hpp"
#include "safetensors/element.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"
#include "safetensors/slice.hpp"

namespace safetensors {

/// A tensor: shape, dtype and bytes, and a share in the memory that holds them. Valid while any
/// copy of it lives, also after its SafeOpen is gone. Copying is cheap and copies no data. A view
/// that was moved from may only be destroyed or assigned to: it no longer keeps its memory.
/// Thread safe as memory is: concurrent reads are.
class SAFETENSORS_API TensorView {
 public:
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

  /// The tensor's bytes: little-endian, C order, not aligned.
  [[nodiscard]] std::span<const std::byte> bytes() const& noexcept { return bytes_; }
  std::span<const std::byte> bytes() const&& = delete;  // would outlive its owner
  /// The same bytes, for writing. Empty if the memory is read-only, as that of a MemorySource.
  /// Writing changes this process's private pages, never the file. Other views of the tensor see
  /// the change.
  /// Thread safety: the caller orders writes with other accesses.
  [[nodiscard]] std::span<std::byte> writable_bytes() const& noexcept {
    return is_writable_ ? bytes_ : std::span<std::byte>();
  }
  std::span<std::byte> writable_bytes() const&& = delete;
  /// Size in bytes.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return bytes_.size(); }
  /// How many elements; 1 for a scalar, 0 when `dtype` is none of Dtype's enumerators.
  [[nodiscard]] std::uint64_t element_count() const noexcept {
    const unsigned bits = bit_size(dtype);
    return bits == 0 ? 0 : std::uint64_t{bytes_.size()} * 8 / bits;
  }
  /// The share in the memory behind bytes(), for those who hand the bytes on.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return keeps_bytes_; }

  /// The elements, without a copy; `holds` says which types T fit. Valid as long as bytes().
  /// Throws what elements() throws: Error kInvalidArgument for another type, or bytes that are not
  /// aligned for it, which writers need not see to. Then use copy_to.
  template <Element T>
  [[nodiscard]] std::span<const T> data() const& {
    return elements<T>(info(), bytes_);
  }
  template <Element T>
  std::span<const T> data() const&& = delete;

  /// Copies the elements, aligned or not, to a vector, array or span, and gives them this machine's
  /// byte order. Throws Error kInvalidArgument when its elements are not of a type that fits, or
  /// are more or fewer.
  template <ElementRange Range>
  void copy_to(Range&& to) const {
    copy_elements(info(), bytes_, to);
  }

  /// The part that `indices` select, as a view of the same memory; nothing when its bytes do not
  /// stand together there (rows do, columns and steps do not): then use copy_slice_to.
  /// Throws Error: what select_part throws.
  [[nodiscard]] std::optional<TensorView> slice(Indices indices) const;

  /// Copies the part that `indices` select, in C order, as copy_to does.
  /// Throws Error: what select_part throws, and what copy_to throws.
  template <ElementRange Range>
  void copy_slice_to(Indices indices, Range&& to) const {
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info());
    copy_slice_bytes(indices, std::as_writable_bytes(values));
    detail::to_values(values);
  }

 private:
  friend class SafeOpen;

  [[nodiscard]] TensorInfo info() const noexcept { return {name, shape, 0, bytes_.size(), dtype}; }
  void copy_slice_bytes(Indices indices, std::span<std::byte> to) const;

  bool is_writable_ = true;
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> keeps_names_;
  std::shared_ptr<const void> keeps_bytes_;
};

}  // namespace safetensors

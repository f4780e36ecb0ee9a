// A tensor of an open file.
#pragma once

#include <algorithm>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "safetensors/dtype.hpp"
#include "safetensors/error.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// The dtype whose elements are the C++ type T: fixed-width integers, float, double, bool, and
/// std::complex<float> by its layout. Half-width floats have no standard type in C++20: read them
/// as std::uint16_t through bytes().
template <typename T>
[[nodiscard]] constexpr bool holds(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF64:
      return std::is_same_v<T, double>;
    case Dtype::kC64:
      return std::is_same_v<T, std::complex<float>>;
    case Dtype::kF32:
      return std::is_same_v<T, float>;
    case Dtype::kI64:
      return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8;
    case Dtype::kI32:
      return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 4;
    case Dtype::kI16:
      return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 2;
    case Dtype::kI8:
      return std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 1;
    case Dtype::kU64:
      return std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 8;
    case Dtype::kU32:
      return std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 4;
    case Dtype::kU16:
      return std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 2;
    case Dtype::kU8:
      return (std::is_integral_v<T> && std::is_unsigned_v<T> && sizeof(T) == 1 &&
              !std::is_same_v<T, bool>) ||
             std::is_same_v<T, std::byte>;
    case Dtype::kBool:
      return std::is_same_v<T, bool>;
    default:
      return false;
  }
}

/// A tensor: shape, dtype and bytes, and a share in the memory that holds them. Valid while any
/// copy of it lives, also after its SafeOpen is gone. Copying is cheap and copies no data.
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
  /// The same, to write to: changes this process's private pages, never the file.
  [[nodiscard]] std::span<std::byte> writable_bytes() const& noexcept { return bytes_; }
  std::span<std::byte> writable_bytes() const&& = delete;
  /// Size in bytes.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return bytes_.size(); }
  /// The share in the memory behind bytes(), for those who hand the bytes on.
  [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return keeps_bytes_; }

  /// The elements, without a copy. Throws Error kInvalidArgument when T is not the tensor's type,
  /// when the bytes are not aligned for it (writers need not align), or when this machine is
  /// big-endian and T has several bytes: then use copy_to.
  template <typename T>
  [[nodiscard]] std::span<const T> data() const& {
    check_type(holds<T>(dtype));
    if constexpr (!kInFileOrder<T>) fail_byte_order();
    check_alignment(alignof(T));
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  template <typename T>
  std::span<const T> data() const&& = delete;

  /// Copies the elements, aligned or not, and gives them this machine's byte order. Throws Error
  /// kInvalidArgument when T is not the tensor's type or `to` has another number of elements.
  template <typename T>
  void copy_to(std::span<T> to) const {
    check_type(holds<T>(dtype));
    if (to.size_bytes() != bytes_.size()) fail_size(to.size_bytes());
    if (!bytes_.empty()) std::memcpy(to.data(), bytes_.data(), bytes_.size());
    if constexpr (!kInFileOrder<T>) {
      // A complex number is two numbers, each with its own byte order.
      constexpr std::size_t kWord =
          std::is_same_v<T, std::complex<float>> ? sizeof(float) : sizeof(T);
      auto* word = reinterpret_cast<std::byte*>(to.data());
      for (std::size_t i = 0; i < to.size_bytes(); i += kWord, word += kWord) {
        std::reverse(word, word + kWord);
      }
    }
  }

 private:
  template <typename T>
  static constexpr bool kInFileOrder = sizeof(T) == 1 || std::endian::native == std::endian::little;

  void check_type(bool holds_it) const;
  void check_alignment(std::size_t alignment) const;
  [[noreturn]] void fail_byte_order() const;
  [[noreturn]] void fail_size(std::size_t nbytes) const;

  std::span<std::byte> bytes_;
  std::shared_ptr<const void> keeps_names_;
  std::shared_ptr<const void> keeps_bytes_;
};

}  // namespace safetensors

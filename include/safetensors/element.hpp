// The elements of a tensor as values of a C++ type.
#pragma once

#include <algorithm>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#if defined(__has_include) && __has_include(<stdfloat>)
#include <stdfloat>
#endif

#include "safetensors/dtype.hpp"
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"
#include "safetensors/temporary.hpp"

namespace safetensors {

/// Whether T is an integer that counts: neither bool nor a character, whose sign and size depend on
/// the machine.
template <typename T>
inline constexpr bool kIsInteger =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> &&
    !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> &&
    !std::is_same_v<T, char32_t>;

/// Whether T is an unsigned integer of `nbytes` bytes.
template <typename T, std::size_t nbytes>
inline constexpr bool kIsUnsigned = kIsInteger<T> && std::is_unsigned_v<T> && sizeof(T) == nbytes;

/// Whether T is a signed integer of `nbytes` bytes.
template <typename T, std::size_t nbytes>
inline constexpr bool kIsSigned = kIsInteger<T> && std::is_signed_v<T> && sizeof(T) == nbytes;

/// Returns whether elements of this dtype can be accessed as T:
/// - integers, float, double, bool: as themselves; C64: as std::complex<float>;
/// - F16, BF16: as their bits in a std::uint16_t, or as std::float16_t and std::bfloat16_t where
///   the standard library has these (C++23);
/// - the 8-bit floats: as their bits in a std::uint8_t;
/// - every dtype: as std::byte, the bytes of the file. This is the only way for F4, F6_E2M3 and
///   F6_E3M2, whose elements share bytes.
template <typename T>
[[nodiscard]] constexpr bool holds(Dtype dtype) noexcept {
  if (std::is_same_v<T, std::byte>) return true;
#if defined(__STDCPP_FLOAT16_T__)
  if (std::is_same_v<T, std::float16_t>) return dtype == Dtype::kF16;
#endif
#if defined(__STDCPP_BFLOAT16_T__)
  if (std::is_same_v<T, std::bfloat16_t>) return dtype == Dtype::kBF16;
#endif
  switch (dtype) {
    case Dtype::kF64:
      return std::is_same_v<T, double>;
    case Dtype::kC64:
      return std::is_same_v<T, std::complex<float>>;
    case Dtype::kF32:
      return std::is_same_v<T, float>;
    case Dtype::kI64:
      return kIsSigned<T, 8>;
    case Dtype::kI32:
      return kIsSigned<T, 4>;
    case Dtype::kI16:
      return kIsSigned<T, 2>;
    case Dtype::kI8:
      return kIsSigned<T, 1>;
    case Dtype::kU64:
      return kIsUnsigned<T, 8>;
    case Dtype::kU32:
      return kIsUnsigned<T, 4>;
    case Dtype::kU16:
    case Dtype::kF16:
    case Dtype::kBF16:
      return kIsUnsigned<T, 2>;
    case Dtype::kU8:
    case Dtype::kF8E5M2:
    case Dtype::kF8E5M2FNUZ:
    case Dtype::kF8E4M3:
    case Dtype::kF8E4M3FNUZ:
    case Dtype::kF8E8M0:
      return kIsUnsigned<T, 1>;
    case Dtype::kBool:
      return std::is_same_v<T, bool>;
    case Dtype::kF4:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
      return false;
  }
  return false;
}

/// Returns the dtype whose elements are values of T, and not only their bits; nothing if there is
/// none.
template <typename T>
[[nodiscard]] constexpr std::optional<Dtype> dtype_of() noexcept {
  if constexpr (std::is_same_v<T, std::byte>) return std::nullopt;
  for (const Dtype dtype :
       {Dtype::kF64, Dtype::kC64, Dtype::kF32, Dtype::kI64, Dtype::kI32, Dtype::kI16, Dtype::kI8,
        Dtype::kU64, Dtype::kU32, Dtype::kU16, Dtype::kU8, Dtype::kBool}) {
    if (holds<T>(dtype)) return dtype;
  }
  // Unsigned integers were found above, so only C++23's own types are left.
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    if (holds<T>(dtype)) return dtype;
  }
  return std::nullopt;
}

/// A type that elements of some dtype can be accessed as. Not const-qualified.
template <typename T>
concept Element = std::is_same_v<T, std::byte> || dtype_of<T>().has_value();

/// Memory that elements are copied to: a vector, array or span of an Element. Not const, and not a
/// temporary that owns its memory.
template <typename Range>
concept ElementRange = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
                       std::ranges::borrowed_range<Range> &&
                       Element<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

namespace detail {

// Files are little-endian; single bytes have no order.
template <typename T>
inline constexpr bool kInFileOrder = sizeof(T) == 1 || std::endian::native == std::endian::little;

/// Returns the type's name for an error text.
template <Element T>
[[nodiscard]] constexpr std::string_view type_name() noexcept {
  if (std::is_same_v<T, float>) return "float";
  if (std::is_same_v<T, double>) return "double";
  if (std::is_same_v<T, std::complex<float>>) return "std::complex<float>";
  if (std::is_same_v<T, bool>) return "bool";
  if (std::is_same_v<T, std::byte>) return "std::byte";
  if (!std::is_integral_v<T>)
    return dtype_of<T>() == Dtype::kF16 ? "std::float16_t" : "std::bfloat16_t";
  switch (sizeof(T)) {
    case 1:
      return std::is_signed_v<T> ? "std::int8_t" : "std::uint8_t";
    case 2:
      return std::is_signed_v<T> ? "std::int16_t" : "std::uint16_t";
    case 4:
      return std::is_signed_v<T> ? "std::int32_t" : "std::uint32_t";
    default:
      return std::is_signed_v<T> ? "std::int64_t" : "std::uint64_t";
  }
}

// These throw Error kInvalidArgument, which names the tensor, and its file unless that is null.
using File = const std::filesystem::path*;
[[noreturn]] SAFETENSORS_API void fail_type(const TensorInfo& info, std::string_view type,
                                            File file);
template <Element T>
void check_type(const TensorInfo& info, File file) {
  if (!holds<T>(info.dtype)) fail_type(info, type_name<T>(), file);
}
SAFETENSORS_API void check_alignment(const TensorInfo& info, const void* bytes,
                                     std::size_t alignment, File file);
SAFETENSORS_API void check_bools(const TensorInfo& info, std::span<const std::byte> bytes,
                                 File file);
SAFETENSORS_API void check_size(const TensorInfo& info, std::uint64_t nbytes, std::uint64_t room,
                                File file);
[[noreturn]] SAFETENSORS_API void fail_byte_order(const TensorInfo& info, File file);

/// Converts `elements`, which hold bytes of a file, to this machine's values, in place.
template <Element T, std::size_t kExtent>
void to_values(std::span<T, kExtent> elements) noexcept {
  if constexpr (std::is_same_v<T, bool>) {
    auto* byte = reinterpret_cast<std::byte*>(elements.data());
    for (std::size_t i = 0; i < elements.size(); ++i) byte[i] = std::byte{byte[i] != std::byte{0}};
  } else if constexpr (!kInFileOrder<T>) {
    // A complex number is two numbers, each with its own byte order.
    constexpr std::size_t kWord =
        std::is_same_v<T, std::complex<float>> ? sizeof(float) : sizeof(T);
    auto* word = reinterpret_cast<std::byte*>(elements.data());
    for (std::size_t i = 0; i < elements.size_bytes(); i += kWord, word += kWord) {
      std::reverse(word, word + kWord);
    }
  }
}

}  // namespace detail

/// Returns the elements in `bytes`, which belong to the tensor `info`, without a copy. Errors name
/// `file` unless it is null.
///
/// Throws: Error kInvalidArgument if
///   - T does not fit the tensor's dtype (see `holds`);
///   - the bytes are not aligned for T, as files need not align tensors;
///   - this machine is big-endian and T has several bytes;
///   - a byte of a BOOL tensor is neither 0 nor 1, which is undefined for a C++ bool. All bytes are
///     checked.
///   copy_elements works in all cases but the first.
/// Lifetime: the result is a view of `bytes`.
template <Element T>
[[nodiscard]] std::span<const T> elements(const TensorInfo& info, std::span<const std::byte> bytes,
                                          const std::filesystem::path* file = nullptr) {
  detail::check_type<T>(info, file);
  if constexpr (!detail::kInFileOrder<T>) detail::fail_byte_order(info, file);
  detail::check_alignment(info, bytes.data(), alignof(T), file);
  if constexpr (std::is_same_v<T, bool>) detail::check_bools(info, bytes, file);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <Element T, Temporary Bytes>
std::span<const T> elements(const TensorInfo&, Bytes&&) = delete;

/// Copies the elements in `bytes`, aligned or not, in this machine's byte order. Every byte of a
/// BOOL tensor that is not 0 is true. Errors name `file` unless it is null.
///
/// Throws: Error kInvalidArgument if the element type of `to` does not fit the tensor's dtype, or
///   the number of elements differs.
template <ElementRange Range>
void copy_elements(const TensorInfo& info, std::span<const std::byte> bytes, Range&& to,
                   const std::filesystem::path* file = nullptr) {
  const std::span values(to);
  detail::check_type<typename decltype(values)::element_type>(info, file);
  detail::check_size(info, bytes.size(), values.size_bytes(), file);
  if (bytes.empty()) return;
  std::memcpy(values.data(), bytes.data(), bytes.size());
  detail::to_values(values);
}

}  // namespace safetensors

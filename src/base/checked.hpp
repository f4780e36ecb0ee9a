// Arithmetic on sizes from untrusted files. The functions named checked_ return nothing if the
// result does not fit in 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <span>

namespace safetensors {

[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a,
                                                              std::uint64_t b) noexcept {
  if (b > std::numeric_limits<std::uint64_t>::max() - a) return std::nullopt;
  return a + b;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a,
                                                                   std::uint64_t b) noexcept {
#if defined(__GNUC__)
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
#else
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) return std::nullopt;
  return a * b;
#endif
}

/// Returns factor times all `values`. If an intermediate product overflows there is no result, even
/// if a later value is 0, as in upstream.
[[nodiscard]] inline std::optional<std::uint64_t> checked_product(
    std::span<const std::uint64_t> values, std::uint64_t factor) noexcept {
  std::optional<std::uint64_t> product = 1;
  for (const std::uint64_t value : values) {
    product = checked_multiply(*product, value);
    if (!product) return std::nullopt;
  }
  return checked_multiply(*product, factor);
}

/// Returns a number of bytes as the size of memory. On systems of 32 bits, a cast would cut it.
///
/// Throws: std::bad_alloc if no memory is so large.
template <typename Size = std::size_t>
[[nodiscard]] Size memory_size(std::uint64_t nbytes) {
  if (nbytes > std::numeric_limits<Size>::max()) throw std::bad_alloc();
  return static_cast<Size>(nbytes);
}

}  // namespace safetensors

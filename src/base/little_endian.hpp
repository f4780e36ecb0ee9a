// Numbers in files: little-endian, at any address.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace safetensors {

/// Returns the number that `from` begins with.
template <typename T>
[[nodiscard]] T load_little(const std::byte* from) noexcept {
  static_assert(std::is_arithmetic_v<T>);
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), from, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
  return std::bit_cast<T>(raw);
}

/// Stores a number at `to`.
template <typename T>
void store_little(std::byte* to, T number) noexcept {
  static_assert(std::is_arithmetic_v<T>);
  auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(number);
  if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
  std::memcpy(to, raw.data(), sizeof(T));
}

}  // namespace safetensors

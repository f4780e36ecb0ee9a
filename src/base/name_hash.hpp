// A keyed hash of names, so that a file cannot contain names chosen to collide.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string_view>

namespace safetensors {

/// Returns the high half of a 128-bit product XOR the low half.
[[nodiscard]] inline std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) noexcept {
#if defined(__SIZEOF_INT128__)
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#else
  const std::uint64_t al = a & 0xFFFFFFFFU, ah = a >> 32, bl = b & 0xFFFFFFFFU, bh = b >> 32;
  const std::uint64_t ll = al * bl, lh = al * bh, hl = ah * bl, hh = ah * bh;
  const std::uint64_t mid = (ll >> 32) + (lh & 0xFFFFFFFFU) + (hl & 0xFFFFFFFFU);
  const std::uint64_t high = hh + (lh >> 32) + (hl >> 32) + (mid >> 32);
  return ((ll & 0xFFFFFFFFU) | (mid << 32)) ^ high;
#endif
}

/// Returns a random number, the same at each call in this process.
[[nodiscard]] inline std::uint64_t secret_seed() {
  static constinit std::atomic<std::uint64_t> known{0};  // no lock, which a fork could copy locked
  std::uint64_t seed = known.load(std::memory_order_relaxed);
  if (seed != 0) return seed;
  std::uint64_t made = 0;
  try {
    std::random_device device;
    made = std::uint64_t{device()} << 32 | device();
  } catch (const std::exception&) {  // no entropy source: the clock is better than a constant
    made = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  made |= 1;  // 0 means not set
  // Of several threads, the first one stores its number; the others use that.
  return known.compare_exchange_strong(seed, made) ? made : seed;
}

/// Returns a hash of `text`, in the manner of wyhash: words are combined by 128-bit products.
/// Requires: the author of the names does not know `seed`.
[[nodiscard]] inline std::uint64_t hash_name(std::string_view text, std::uint64_t seed) noexcept {
  constexpr std::uint64_t kA = 0xA0761D6478BD642FU;
  constexpr std::uint64_t kB = 0xE7037ED1A0B428DBU;
  const auto load = [](const char* p, std::size_t n) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, p, n);
    return word;
  };
  const char* p = text.data();
  std::size_t n = text.size();
  std::uint64_t h = seed ^ kA;
  while (n > 16) {
    h = multiply_fold(load(p, 8) ^ kB, load(p + 8, 8) ^ h);
    p += 16;
    n -= 16;
  }
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  if (n >= 8) {  // the two words overlap, which covers every length without a loop
    a = load(p, 8);
    b = load(p + n - 8, 8);
  } else if (n >= 4) {
    a = load(p, 4);
    b = load(p + n - 4, 4);
  } else if (n > 0) {
    const auto byte = [&](std::size_t i) -> std::uint64_t {
      return static_cast<unsigned char>(p[i]);
    };
    a = byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1);
  }
  return multiply_fold(kA ^ text.size(), multiply_fold(a ^ kB, b ^ h));
}

}  // namespace safetensors

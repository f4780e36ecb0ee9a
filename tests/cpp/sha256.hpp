// SHA-256 (FIPS 180-4), to check the digests that are stored with the test data.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace test {

namespace sha256_detail {

/// Returns the standard's constants: the first 32 bits of the fractional parts of a root of the
/// first primes, found by bisection in integers.
inline std::uint32_t root_fraction(std::uint32_t prime, int degree) {
  // The greatest x with x^degree <= prime * 2^(32 * degree): 32 bits after the point. Powers are
  // of at most 128 bits here, kept in 16-bit digits.
  const auto power_is_at_most = [&](std::uint64_t x) {
    std::vector<std::uint64_t> product = {1};
    for (int k = 0; k < degree; ++k) {
      std::vector<std::uint64_t> next(product.size() + 3, 0);
      for (std::size_t i = 0; i < product.size(); ++i) {
        for (std::size_t j = 0; j < 3; ++j) next[i + j] += product[i] * ((x >> (16 * j)) & 0xFFFF);
      }
      for (std::size_t i = 0; i + 1 < next.size(); ++i) {
        next[i + 1] += next[i] >> 16;
        next[i] &= 0xFFFF;
      }
      product = next;
    }
    std::vector<std::uint64_t> limit(product.size(), 0);
    limit[static_cast<std::size_t>(2 * degree)] = prime;
    for (std::size_t i = product.size(); i-- > 0;) {
      if (product[i] != limit[i]) return product[i] < limit[i];
    }
    return true;
  };
  std::uint64_t x = 0;
  for (int bit = 37; bit >= 0; --bit) {
    const std::uint64_t more = x | (std::uint64_t{1} << bit);
    if (power_is_at_most(more)) x = more;
  }
  return static_cast<std::uint32_t>(x);
}

struct Constants {
  std::array<std::uint32_t, 64> rounds{};
  std::array<std::uint32_t, 8> start{};
};

inline const Constants& constants() {
  static const Constants all = [] {
    Constants made;
    std::size_t count = 0;
    for (std::uint32_t n = 2; count < made.rounds.size(); ++n) {
      bool is_prime = true;
      for (std::uint32_t k = 2; k * k <= n; ++k) is_prime = is_prime && n % k != 0;
      if (!is_prime) continue;
      if (count < made.start.size()) made.start[count] = root_fraction(n, 2);
      made.rounds[count++] = root_fraction(n, 3);
    }
    return made;
  }();
  return all;
}

inline void mix(std::array<std::uint32_t, 8>& state, const std::byte* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 64; ++i) {
    w[i / 4] = (w[i / 4] << 8) | std::to_integer<std::uint32_t>(block[i]);
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15];
    const std::uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + constants().rounds[i] + w[i];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

}  // namespace sha256_detail

/// Returns the digest, in hexadecimal digits.
inline std::string sha256(std::span<const std::byte> bytes) {
  std::array<std::uint32_t, 8> state = sha256_detail::constants().start;
  std::size_t done = 0;
  for (; bytes.size() - done >= 64; done += 64) sha256_detail::mix(state, bytes.data() + done);
  std::vector<std::byte> tail(bytes.begin() + static_cast<std::ptrdiff_t>(done), bytes.end());
  tail.push_back(std::byte{0x80});
  while (tail.size() % 64 != 56) tail.push_back(std::byte{0});
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) {
    tail.push_back(static_cast<std::byte>(bits >> shift & 0xFF));
  }
  for (std::size_t i = 0; i < tail.size(); i += 64) sha256_detail::mix(state, tail.data() + i);
  std::string digits;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) {
      digits += "0123456789abcdef"[(word >> shift) & 15];
    }
  }
  return digits;
}

}  // namespace test

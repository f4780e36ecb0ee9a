// Helpers for the tests of dequantisation.
#pragma once

#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"
#include "sha256.hpp"
#include "support.hpp"

namespace test {

namespace weights = safetensors::weights;
using weights::Kernels;
using weights::Output;

inline constexpr Output kOutputs[] = {Output::f32, Output::f16, Output::bf16};

inline fs::path weights_data(std::string_view name) {
  return fs::path(SAFETENSORS_SOURCE_DIR) / "weights" / "tests" / "data" / name;
}

inline rapidjson::Document read_json(const fs::path& path) {
  rapidjson::Document document;
  document.Parse(read_text(path).c_str());
  if (document.HasParseError()) throw std::runtime_error("not JSON: " + path.string());
  return document;
}

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 56);
  return bytes;
}

/// Returns the bytes from `begin` on.
inline std::span<const std::byte> tail(std::span<const std::byte> bytes, std::size_t begin) {
  return bytes.subspan(begin);
}

/// Memory of an exact size, `skew` bytes away from an aligned address.
class Skewed {
 public:
  explicit Skewed(std::size_t nbytes, std::size_t skew = 0)
      : bytes_(new std::byte[skew + nbytes]), skew_(skew), nbytes_(nbytes) {}
  Skewed(std::span<const std::byte> bytes, std::size_t skew) : Skewed(bytes.size(), skew) {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::byte* data() const { return bytes_.get() + skew_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data(), nbytes_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t skew_;
  std::size_t nbytes_;
};

inline float float_at(std::span<const std::byte> bytes, std::size_t index) {
  float value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

/// Returns values as little-endian bytes. Zeros have no sign, because their sign is not specified.
inline std::string digest_of_floats(std::span<const std::byte> floats) {
  std::vector<std::byte> bytes(floats.size());
  for (std::size_t i = 0; i * 4 < floats.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(float_at(floats, i) + 0.0F);
    for (std::size_t k = 0; k < 4; ++k) {
      bytes[i * 4 + k] = static_cast<std::byte>(bits >> (8 * k) & 0xFF);
    }
  }
  return sha256(bytes);
}

/// Rounds to a 16-bit float as IEEE 754 defines it: to the nearest value, ties to even. `digits` is
/// the length of the significand with its hidden bit, `least` the exponent of the smallest normal
/// number.
inline std::uint16_t rounded(float value, int digits, int least, int exponent_bits) {
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  const int fraction_bits = digits - 1;
  const unsigned infinity = ((1U << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1U);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  if (value == 0.0F) return static_cast<std::uint16_t>(sign);
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = 0;
  (void)std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, least);
  // nearbyint rounds to even.
  const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  // A number of so many units of this exponent; a full significand carries into the next one.
  const double bits = units + std::ldexp(exponent - least, fraction_bits);
  const auto encoded = static_cast<unsigned>(std::min<double>(bits, infinity));
  return static_cast<std::uint16_t>(sign | encoded);
}

inline std::uint16_t rounded(float value, Output output) {
  return output == Output::f16 ? rounded(value, 11, -14, 5) : rounded(value, 8, -126, 8);
}

inline bool is_nan16(std::uint16_t bits, Output output) {
  return output == Output::f16 ? (bits & 0x7FFF) > 0x7C00 : (bits & 0x7FFF) > 0x7F80;
}

/// Counts the values in which two outputs differ. All NaNs are equal.
inline std::size_t count_differences(std::span<const std::byte> a, std::span<const std::byte> b,
                                     Output output) {
  if (a.size() != b.size()) return std::numeric_limits<std::size_t>::max();
  std::size_t count = 0;
  const std::size_t size = weights::size_of(output);
  for (std::size_t i = 0; i + size <= a.size(); i += size) {
    if (std::memcmp(a.data() + i, b.data() + i, size) == 0) continue;
    if (output == Output::f32) {
      if (std::isnan(float_at(a, i / 4)) && std::isnan(float_at(b, i / 4))) continue;
    } else {
      std::uint16_t x = 0;
      std::uint16_t y = 0;
      std::memcpy(&x, a.data() + i, 2);
      std::memcpy(&y, b.data() + i, 2);
      if (is_nan16(x, output) && is_nan16(y, output)) continue;
    }
    ++count;
  }
  return count;
}

/// Returns the F32 output `floats`, rounded by the reference above.
inline std::vector<std::byte> rounded_all(std::span<const std::byte> floats, Output output) {
  if (output == Output::f32) return {floats.begin(), floats.end()};
  std::vector<std::byte> bytes(floats.size() / 2);
  for (std::size_t i = 0; i * 2 < bytes.size(); ++i) {
    const std::uint16_t half = rounded(float_at(floats, i), output);
    std::memcpy(bytes.data() + i * 2, &half, 2);
  }
  return bytes;
}

/// Compares what `decode(output, to, kernels)` writes, with each build and in each type, with the
/// F32 values `floats`. The memory is `skew` bytes away from an aligned address.
template <typename Decode>
void check_outputs(std::span<const std::byte> floats, std::size_t skew, const Decode& decode) {
  for (const Kernels* kernels : weights::usable_kernels()) {
    CAPTURE(std::string(kernels->name));
    for (const Output output : kOutputs) {
      const Skewed to(floats.size() / sizeof(float) * weights::size_of(output), skew);
      decode(output, to.data(), *kernels);
      CHECK(count_differences(to.span(), rounded_all(floats, output), output) == 0);
    }
  }
}

}  // namespace test

// Compares conversions of plain values with independent formulas.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "dequant_support.hpp"
#include "safetensors/weights/error.hpp"

namespace {

using namespace test;

std::uint64_t unsigned_at(std::span<const std::byte> bytes, std::size_t index, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t k = size; k-- > 0;) {
    value = value << 8 | std::to_integer<std::uint64_t>(bytes[index * size + k]);
  }
  return value;
}

std::int64_t signed_at(std::span<const std::byte> bytes, std::size_t index, std::size_t size) {
  const std::uint64_t value = unsigned_at(bytes, index, size);
  const auto shift = static_cast<int>(64 - 8 * size);
  return static_cast<std::int64_t>(value << shift) >> shift;
}

/// Decodes a float of 16 bits or fewer by the definition of its fields.
double small_float(unsigned bits, int exponent_bits, int fraction_bits, int bias) {
  const unsigned fraction = bits & ((1U << fraction_bits) - 1);
  const unsigned exponent = (bits >> fraction_bits) & ((1U << exponent_bits) - 1);
  const double sign = (bits >> (fraction_bits + exponent_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1U << fraction_bits),
                           static_cast<int>(exponent) - bias - fraction_bits);
}

double ieee(unsigned bits, int exponent_bits, int fraction_bits) {
  const unsigned top = ((1U << exponent_bits) - 1) << fraction_bits;
  const unsigned magnitude = bits & ((top << 1 | ((1U << (fraction_bits + 1)) - 1)) >> 1);
  const bool negative = bits >> (fraction_bits + exponent_bits) != 0;
  if (magnitude > top) return std::nan("");
  if (magnitude == top) return negative ? -HUGE_VAL : HUGE_VAL;
  return small_float(bits, exponent_bits, fraction_bits, (1 << (exponent_bits - 1)) - 1);
}

/// Returns the value at that index; nothing for types that are not converted.
std::function<float(std::span<const std::byte>, std::size_t)> oracle_of(Dtype dtype) {
  using Bytes = std::span<const std::byte>;
  const auto of_code = [](auto value) {
    return [value](Bytes bytes, std::size_t i) {
      return static_cast<float>(value(std::to_integer<unsigned>(bytes[i])));
    };
  };
  switch (dtype) {
    case Dtype::kU64:
      return [](Bytes b, std::size_t i) { return static_cast<float>(unsigned_at(b, i, 8)); };
    case Dtype::kU32:
      return [](Bytes b, std::size_t i) { return static_cast<float>(unsigned_at(b, i, 4)); };
    case Dtype::kU16:
      return [](Bytes b, std::size_t i) { return static_cast<float>(unsigned_at(b, i, 2)); };
    case Dtype::kU8:
      return [](Bytes b, std::size_t i) { return static_cast<float>(unsigned_at(b, i, 1)); };
    case Dtype::kI64:
      return [](Bytes b, std::size_t i) { return static_cast<float>(signed_at(b, i, 8)); };
    case Dtype::kI32:
      return [](Bytes b, std::size_t i) { return static_cast<float>(signed_at(b, i, 4)); };
    case Dtype::kI16:
      return [](Bytes b, std::size_t i) { return static_cast<float>(signed_at(b, i, 2)); };
    case Dtype::kI8:
      return [](Bytes b, std::size_t i) { return static_cast<float>(signed_at(b, i, 1)); };
    case Dtype::kBool:
      return [](Bytes b, std::size_t i) { return b[i] != std::byte{0} ? 1.0F : 0.0F; };
    case Dtype::kF64:
      return [](Bytes b, std::size_t i) {
        return static_cast<float>(std::bit_cast<double>(unsigned_at(b, i, 8)));
      };
    case Dtype::kF32:
      return [](Bytes b, std::size_t i) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(unsigned_at(b, i, 4)));
      };
    case Dtype::kF16:
      return [](Bytes b, std::size_t i) {
        return static_cast<float>(ieee(static_cast<unsigned>(unsigned_at(b, i, 2)), 5, 10));
      };
    case Dtype::kBF16:
      return [](Bytes b, std::size_t i) {
        return static_cast<float>(ieee(static_cast<unsigned>(unsigned_at(b, i, 2)), 8, 7));
      };
    case Dtype::kF8E4M3:
      return of_code(
          [](unsigned c) { return (c & 0x7FU) == 0x7FU ? std::nan("") : small_float(c, 4, 3, 7); });
    case Dtype::kF8E5M2:
      return of_code([](unsigned c) { return ieee(c, 5, 2); });
    case Dtype::kF8E4M3FNUZ:
      return of_code([](unsigned c) { return c == 0x80 ? std::nan("") : small_float(c, 4, 3, 8); });
    case Dtype::kF8E5M2FNUZ:
      return of_code(
          [](unsigned c) { return c == 0x80 ? std::nan("") : small_float(c, 5, 2, 16); });
    case Dtype::kF8E8M0:
      return of_code([](unsigned c) {
        return c == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(c) - 127);
      });
    case Dtype::kF4:
      return [](Bytes b, std::size_t i) {
        const unsigned byte = std::to_integer<unsigned>(b[i / 2]);
        return static_cast<float>(small_float(i % 2 == 0 ? byte & 15U : byte >> 4, 2, 1, 1));
      };
    case Dtype::kC64:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
      break;
  }
  return nullptr;
}

/// Returns all codes of small types, else random bits; an odd number of values.
std::vector<std::byte> codes_of(Dtype dtype) {
  const std::size_t size = std::max(1U, safetensors::bit_size(dtype) / 8);
  if (size > 2) return random_bytes(4999 * size, size);
  std::vector<std::byte> bytes;
  const unsigned count = size == 1 ? 256 : 65536;
  for (unsigned code = 0; code < count; ++code) {
    for (std::size_t k = 0; k < size; ++k) {
      bytes.push_back(static_cast<std::byte>(code >> (8 * k) & 0xFF));
    }
  }
  if (size == 2) {
    bytes.pop_back();
    bytes.pop_back();
  }
  return bytes;
}

}  // namespace

TEST_CASE("converting values: every type, in all builds, at any address") {
  for (const Dtype dtype : safetensors::all_dtypes()) {
    CAPTURE(std::string(safetensors::name(dtype)));
    const auto oracle = oracle_of(dtype);
    CHECK(weights::can_convert(dtype) == (oracle != nullptr));
    if (oracle == nullptr) {
      std::byte bytes[16] = {};
      try {
        weights::convert_values(dtype, bytes, 1, Output::f32, bytes + 8);
        FAIL("it was converted");
      } catch (const weights::WeightsError& error) {
        CHECK(error.code() == weights::Errc::unsupported);
      }
      continue;
    }
    const auto raw = codes_of(dtype);
    const std::size_t whole = raw.size() * 8 / safetensors::bit_size(dtype);
    for (const std::size_t count : {whole, whole - 1, std::size_t{1}, std::size_t{0}}) {
      std::vector<std::byte> floats(count * sizeof(float));
      for (std::size_t i = 0; i < count; ++i) {
        const float value = oracle(raw, i);
        std::memcpy(floats.data() + i * sizeof value, &value, sizeof value);
      }
      const std::size_t nbytes = (count * safetensors::bit_size(dtype) + 7) / 8;
      for (const Kernels* kernels : weights::usable_kernels()) {
        CAPTURE(std::string(kernels->name));
        for (const std::size_t skew : {0U, 1U}) {
          const Skewed from(std::span<const std::byte>(raw).first(nbytes), skew);
          for (const Output output : kOutputs) {
            const Skewed to(count * weights::size_of(output), skew);
            weights::convert_values(dtype, from.data(), count, output, to.data(), {}, *kernels);
            CHECK(count_differences(to.span(), rounded_all(floats, output), output) == 0);
          }
          const Skewed halves(count * 2, skew);
          const std::uint64_t overflows =
              weights::to_f16_values(dtype, from.data(), count, halves.data(), {}, *kernels);
          CHECK(count_differences(halves.span(), rounded_all(floats, Output::f16), Output::f16) ==
                0);
          std::uint64_t expected = 0;
          for (std::size_t i = 0; i < count; ++i) {
            const float value = float_at(floats, i);
            const bool infinite = (rounded(value, Output::f16) & 0x7FFF) == 0x7C00;
            if (std::isfinite(value) && infinite) ++expected;
          }
          CHECK(overflows == expected);
        }
      }
    }
  }
}

TEST_CASE("rounding: numbers around every F16 and BF16, and half way between them") {
  std::vector<float> values;
  const auto near = [&](float value) {
    for (const float sign : {1.0F, -1.0F}) {
      values.push_back(sign * value);
      values.push_back(sign * std::nextafterf(value, 0.0F));
      values.push_back(sign * std::nextafterf(value, HUGE_VALF));
    }
  };
  for (unsigned code = 0; code < 0x7C00; ++code) {
    const double here = ieee(code, 5, 10);
    const double next = code == 0x7BFF ? 65536.0 : ieee(code + 1, 5, 10);
    near(static_cast<float>(here));
    near(static_cast<float>((here + next) / 2));
  }
  for (unsigned code = 0; code < 0x7F80; ++code) {
    const double here = ieee(code, 8, 7);
    const double next = code == 0x7F7F ? 0x1p128 : ieee(code + 1, 8, 7);
    near(static_cast<float>(here));
    near(static_cast<float>((here + next) / 2));
  }
  const std::span<const std::byte> floats = std::as_bytes(std::span(values));
  for (const Output output : {Output::f16, Output::bf16}) {
    const auto expected = rounded_all(floats, output);
    for (const Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      std::vector<std::byte> found(values.size() * 2);
      const auto narrow = output == Output::f16 ? kernels->to_f16 : kernels->to_bf16;
      narrow(values.data(), values.size(), reinterpret_cast<std::uint8_t*>(found.data()));
      CHECK(count_differences(found, expected, output) == 0);
    }
  }
}

TEST_CASE("rounding: NaN stays NaN, with the same bits in all builds") {
  const std::uint32_t patterns[] = {0x7F800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF,
                                    0xFF800001, 0x7F801FFF, 0xFFFFFFFF, 0x7F802000};
  std::vector<float> values;
  for (int i = 0; i < 3; ++i) {
    for (const std::uint32_t bits : patterns) {
      values.push_back(0.0F);
      std::memcpy(&values.back(), &bits, sizeof bits);
    }
  }
  for (const Output output : {Output::f16, Output::bf16}) {
    std::vector<std::uint8_t> first;
    for (const Kernels* kernels : weights::usable_kernels()) {
      std::vector<std::uint8_t> found(values.size() * 2);
      (output == Output::f16 ? kernels->to_f16 : kernels->to_bf16)(values.data(), values.size(),
                                                                   found.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, found.data() + 2 * i, 2);
        CHECK(is_nan16(half, output));
      }
      if (first.empty()) first = found;
      CHECK(found == first);
    }
  }
}

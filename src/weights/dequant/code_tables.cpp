#include "weights/dequant/code_tables.hpp"

#include <limits>

namespace safetensors::weights {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr float power_of_two(int exponent) noexcept {
  float value = 1.0F;
  for (; exponent > 0; --exponent) value *= 2.0F;
  for (; exponent < 0; ++exponent) value *= 0.5F;
  return value;
}

enum class Specials : std::uint8_t { ieee, fn, fnuz };

constexpr CodeTable floats(int mantissa_bits, int bias, Specials specials) noexcept {
  CodeTable table{};
  const int exponent_mask = 0x7F >> mantissa_bits;
  const int mantissa_mask = (1 << mantissa_bits) - 1;
  const float unit = power_of_two(-mantissa_bits);
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> mantissa_bits) & exponent_mask;
    const int mantissa = code & mantissa_mask;
    const auto fraction = static_cast<float>(mantissa) * unit;
    float value = exponent == 0 ? fraction * power_of_two(1 - bias)
                                : (1.0F + fraction) * power_of_two(exponent - bias);
    if (specials == Specials::ieee && exponent == exponent_mask) {
      value = mantissa == 0 ? kInfinity : kNan;
    }
    if (specials == Specials::fn && (code & 0x7F) == 0x7F) value = kNan;
    if (specials == Specials::fnuz && code == 0x80) value = kNan;
    table.values[code] = (code & 0x80) != 0 ? -value : value;
  }
  return table;
}

constexpr CodeTable powers() noexcept {
  CodeTable table{};
  for (int code = 0; code < 255; ++code) {
    table.values[code] = power_of_two(code - 127);
  }
  table.values[255] = kNan;
  return table;
}

}  // namespace

constinit const CodeTable kE4M3Values = floats(3, 7, Specials::fn);
constinit const CodeTable kE5M2Values = floats(2, 15, Specials::ieee);
constinit const CodeTable kE4M3FnuzValues = floats(3, 8, Specials::fnuz);
constinit const CodeTable kE5M2FnuzValues = floats(2, 16, Specials::fnuz);
constinit const CodeTable kE8M0Values = powers();

}  // namespace safetensors::weights

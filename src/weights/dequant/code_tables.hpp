// Values of 8-bit floats, and of codes that stand for values.
#pragma once

#include <cstdint>

namespace safetensors::weights {

// Plain arrays: kernels must not call members of std::array (see kernel_base.hpp).
struct CodeTable {
  float values[256];
};

extern const CodeTable kE4M3Values;      ///< no infinity; 0x7F and 0xFF are NaN
extern const CodeTable kE5M2Values;      ///< as IEEE 754 would have it
extern const CodeTable kE4M3FnuzValues;  ///< no infinity, no negative zero; 0x80 is NaN
extern const CodeTable kE5M2FnuzValues;  ///< likewise
extern const CodeTable kE8M0Values;      ///< powers of two; 0xFF is NaN

/// Codes of four bits, as twice their values where those are halves.
struct NibbleTable {
  std::int8_t values[16];
};
inline constexpr NibbleTable kTwiceE2M1 = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
inline constexpr NibbleTable kNonLinear4 = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

}  // namespace safetensors::weights

// Tables from codes to values: 8-bit floats, and 4-bit codes.
#pragma once

#include <cstdint>

namespace safetensors::weights {

// A plain array: kernels must not call members of std::array (see kernel_base.hpp).
struct CodeTable {
  float values[256];
};

extern const CodeTable kE4M3Values;      ///< no infinity; 0x7F and 0xFF are NaN
extern const CodeTable kE5M2Values;      ///< with infinities and NaN, as in IEEE 754
extern const CodeTable kE4M3FnuzValues;  ///< no infinity, no negative zero; 0x80 is NaN
extern const CodeTable kE5M2FnuzValues;  ///< likewise
extern const CodeTable kE8M0Values;      ///< powers of two; 0xFF is NaN

/// Values of the 16 codes of four bits.
struct NibbleTable {
  std::int8_t values[16];
};
/// Twice the values of E2M1 (sign, 2 bits of exponent, 1 bit of fraction: 0, 0.5, 1, 1.5, 2, 3, 4,
/// 6): integers, for use in vectors of bytes. The negative zero (code 8) is 0.
inline constexpr NibbleTable kTwiceE2M1 = {
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
/// Values of IQ4_NL and IQ4_XS (ggml: kvalues_iq4nl).
inline constexpr NibbleTable kNonLinear4 = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

}  // namespace safetensors::weights

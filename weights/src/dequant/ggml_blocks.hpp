// How GGUF's types lay out their blocks.
//
// Source of layouts and formulas: the GGUF specification, and in ggml the block_* structures of
// ggml-common.h and the dequantize_row_* functions of ggml-quants.c. Numbers are little-endian. A
// block may start at any address, so all fields are arrays of bytes.
//
// Words used below:
//   scale       F16 that multiplies all values of the block (ggml: d)
//   min         F16 that is subtracted or added, as the formula says (ggml: m, dmin)
//   code        the small integer that is stored for one value (ggml: q)
//   nibble      half of a byte: the low one has the bits 0 to 3, the high one the bits 4 to 7
//   super-block a block of 256 values in groups of 16 or 32, each with a small integer scale
//
// Values are numbered from 0 in the order in which they are written.
#pragma once

#include <cstdint>

namespace safetensors::weights::ggml {

using Byte = std::uint8_t;
using Half = std::uint8_t[2];  ///< an F16

// ---- Blocks of 32 to 128 values with one scale
// ---------------------------------------------------
//
// Five types of 32 values store their codes as 16 bytes of nibbles: the low nibble of byte i is the
// code of value i, the high nibble that of value i + 16.
//
//     byte        0      1            15
//     low       | v0   | v1  |  ...  | v15 |
//     high      | v16  | v17 |  ...  | v31 |

/// value = scale * (code - 8)
struct Q4_0 {
  Half scale;
  Byte codes[16];
};

/// value = scale * code + min
struct Q4_1 {
  Half scale;
  Half min;
  Byte codes[16];
};

/// value = scale * (code - 16). A code has five bits: a nibble, and bit i of `fifth_bits` for
/// value i.
struct Q5_0 {
  Half scale;
  Byte fifth_bits[4];
  Byte codes[16];
};

/// value = scale * code + min, with codes as in Q5_0.
struct Q5_1 {
  Half scale;
  Half min;
  Byte fifth_bits[4];
  Byte codes[16];
};

/// value = scale * code, with signed codes of eight bits.
struct Q8_0 {
  Half scale;
  Byte codes[32];
};

/// value = scale * kNonLinear4[code]: steps that are finer around zero.
struct IQ4_NL {
  Half scale;
  Byte codes[16];
};

/// value = 2^(scale - 127) * E2M1(code): the microscaling format of the OCP.
struct MXFP4 {
  Byte scale[1];  ///< E8M0
  Byte codes[16];
};

/// Four groups of 16 values: value = E4M3(scale of the group) * E2M1(code). A group has eight bytes
/// of nibbles: the low ones are its values 0 to 7, the high ones its values 8 to 15.
struct NVFP4 {
  Byte scales[4];
  Byte codes[4][8];
};

/// value = scale if the bit is set, else -scale. Bit 0 of byte 0 is value 0.
struct Q1_0 {
  Half scale;
  Byte bits[16];
};

/// value = scale * (code - 1). A byte has four codes of two bits, the first in the lowest bits.
struct Q2_0 {
  Half scale;
  Byte codes[16];
};

// ---- K-quants: super-blocks
// ----------------------------------------------------------------------
//
// Codes of two bits come in planes. Each half of the super-block (128 values) has 32 bytes, and
// byte i of them has the codes of four values that are 32 apart:
//
//     bits of byte i      7 6    5 4    3 2    1 0
//     value of the half  i+96   i+64   i+32    i

/// 16 groups of 16 values: value = scale * low nibble * code - min * high nibble, where the nibbles
/// are those of the group's byte of `groups`.
struct Q2_K {
  Byte groups[16];
  Byte codes[2][32];  ///< planes of two bits
  Half scale;
  Half min;
};

/// 16 groups of 16 values: value = scale * (group scale - 32) * (code - 4).
///
/// A code has three bits: two from the planes, and the top one from bit p of high_bits[i], for the
/// value 32 * p + i.
///
/// A group scale has six bits, the lower four and the upper two apart:
///
///     byte of group_scales    bits 7-4              bits 3-0               (j = 0 to 7)
///     j                       group j + 8, 3-0      group j, 3-0
///
///     byte of group_scales    bits 7-6         5-4          3-2          1-0     (j = 0 to 3)
///     8 + j                   group j + 12     group j + 8  group j + 4  group j, 5-4
struct Q3_K {
  Byte high_bits[32];
  Byte codes[2][32];  ///< planes of two bits
  Byte group_scales[12];
  Half scale;
};

/// 8 groups of 32 values: value = scale * group scale * code - min * group min.
///
/// codes[i] has group 2 * i in its low nibbles and group 2 * i + 1 in its high ones. Group scales
/// and group minima have six bits each, in twelve bytes:
///
///     byte  bits 7-6             bits 5-0            (j = 0 to 3)
///     j     scale of j+4, 5-4    scale of j
///     4+j   min of j+4, 5-4      min of j
///
///     byte  bits 7-4             bits 3-0
///     8+j   min of j+4, 3-0      scale of j+4, 3-0
struct Q4_K {
  Half scale;
  Half min;
  Byte groups[12];
  Byte codes[4][32];
};

/// As Q4_K, with a fifth bit for each code: bit g of fifth_bits[i] for value i of group g.
struct Q5_K {
  Half scale;
  Half min;
  Byte groups[12];
  Byte fifth_bits[32];
  Byte codes[4][32];
};

/// 16 groups of 16 values: value = scale * group scale * (code - 32), with signed group scales.
///
/// A code has six bits. Each half (128 values) has 64 bytes of nibbles with the lower four, and 32
/// bytes with the upper two, as planes:
///
///     values of the half   lower four bits              upper two bits
///     0 to 31              low nibble of low[0..31]     bits 0-1 of high[0..31]
///     32 to 63             low nibble of low[32..63]    bits 2-3
///     64 to 95             high nibble of low[0..31]    bits 4-5
///     96 to 127            high nibble of low[32..63]   bits 6-7
struct Q6_K {
  Byte low[2][64];
  Byte high[2][32];
  Byte group_scales[16];
  Half scale;
};

/// value = scale * (digit - 1), with digits 0, 1 and 2 of base 3.
///
/// A byte b has five digits d0 ... d4 (the last four bytes: four digits) as a fraction of 256,
/// rounded up: b / 256 = d0 / 3 + d1 / 9 + ... + d4 / 243. So digit n is the integer part of
/// 3 * fraction(b * 3^n / 256). Digit n of the 32 bytes at `first` are the values 32 * n on, then
/// follow digit n of the 16 bytes at `second`, and digit n of the four bytes at `last`.
struct TQ1_0 {
  Byte first[32];
  Byte second[16];
  Byte last[4];
  Half scale;
};

/// value = scale * (code - 1), with planes of two bits.
struct TQ2_0 {
  Byte codes[2][32];
  Half scale;
};

// ---- IQ: codes that select rows of a grid
// --------------------------------------------------------
//
// A grid (iq_grids.hpp) is a table of rows of eight or four values. A row index is stored for each
// eight or four values, and a sign for each value where the grid's values are positive. Seven bits
// are stored for eight signs: the eighth makes the number of negative ones even (kernel_iq.hpp).

/// Eight parts of 32 values: value = scale * (0.5 + part scale) / 4 * grid value, with sign.
///
///     signs_and_scale, 32 bits   31-28        27-21   20-14   13-7    6-0
///                                part scale   signs   signs   signs   signs of values 0 to 7
struct IQ2_XXS {
  struct Part {
    Byte rows[4];
    Byte signs_and_scale[4];
  };
  Half scale;
  Part parts[8];
};

/// 16 groups of 16 values: value = scale * (0.5 + group scale) / 4 * grid value, with sign. A code
/// for eight values has its row in the bits 0 to 8 and its signs in the bits 9 to 15. Group scales
/// are nibbles, the first in the low one.
struct IQ2_XS {
  Half scale;
  Byte codes[16][2][2];
  Byte group_scales[8];
};

/// As IQ2_XS, but all eight signs are stored, and the bits 8 and 9 of the rows apart: byte i of
/// `high_rows` has those of the four rows from 4 * i on, the first in the lowest bits.
struct IQ2_S {
  Half scale;
  Byte rows[16][2];
  Byte signs[16][2];
  Byte high_rows[8];
  Byte group_scales[8];
};

/// As IQ2_XXS, with rows of four values and (0.5 + part scale) / 2.
struct IQ3_XXS {
  Half scale;
  Byte rows[8][8];
  Byte signs_and_scales[8][4];  ///< as in IQ2_XXS
};

/// 16 groups of 16 values: value = scale * (1 + 2 * part scale) * grid value, with sign. Rows have
/// four values; bit i of high_rows[j] is bit 8 of row 8 * j + i. Part scales are nibbles, one for
/// each 32 values.
struct IQ3_S {
  Half scale;
  Byte rows[16][4];
  Byte high_rows[8];
  Byte signs[16][2];
  Byte part_scales[4];
};

/// Eight parts of 32 values: value = scale * (2 * part scale + 1) * (grid value + delta), where
/// delta is 1/8 or -1/8.
///
///     high, 16 bits   15                    14-12        11-9      8-6       5-3       2-0
///                     1: delta is -1/8      part scale   the bits 8 to 10 of the rows 3 ... 0
struct IQ1_S {
  Half scale;
  Byte rows[8][4];
  Byte high[8][2];
};

/// 16 groups of 16 values, by the formula of IQ1_S with a scale for each group and a delta for each
/// eight values. A byte of `high` is for two rows:
///
///     bits   7               6-4            3               2-0
///            row 1: delta    row 1, 8-10    row 0: delta    row 0, 8-10
///
/// The four 16-bit words of `scales` have four group scales of three bits each in their bits 0
/// to 11. The bits 12 to 15 of all words, the first word's lowest, make the F16 that other types
/// call scale.
struct IQ1_M {
  Byte rows[16][2];
  Byte high[16];
  Byte scales[4][2];
};

/// Eight parts of 32 values: value = scale * (part scale - 32) * kNonLinear4[code]. A part scale
/// has six bits: a nibble, and two bits of `high_scales`, the first part's lowest.
struct IQ4_XS {
  Half scale;
  Byte high_scales[2];
  Byte low_scales[4];
  Byte codes[8][16];
};

}  // namespace safetensors::weights::ggml

// Decodes integers whose rows were rotated by a Hadamard matrix before they were rounded, as
// comfy-kitchen's ConvRot does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dequant/dequant.hpp"
#include "dequant/part_bytes.hpp"

namespace safetensors::weights {

/// How the integers of a rotated row are stored.
enum class RotatedCodes : std::uint8_t {
  bytes,    ///< signed bytes
  nibbles,  ///< signed, two in each byte, the first in the low nibble
  four,     ///< nibbles as above, unsigned; each stands for a value that has a scale of its own
  six,      ///< as `four`, followed by two more bits of each code, four in each byte
};

/// Consecutive rows of integers. Each `rotation` columns were multiplied by
///
///     H = kron(h, h, ...) / sqrt(rotation),   h =  1  1  1 -1
///                                                  1  1 -1  1
///                                                  1 -1  1  1
///                                                 -1  1  1  1
///
/// which is symmetric and its own inverse. So
///
///     value[i, k] = (sum over j of sign(k, j) * n[i, j]) * scale[i] / sqrt(rotation)
///
/// over the columns j of the same rotation. The sum is exact, and the root a power of two. n is the
/// code; of RotatedCodes::four and six it is round(value of the code * relative scale), within -127
/// and 127, where ties go to even.
struct RotatedRows {
  RotatedCodes packing = RotatedCodes::bytes;
  const std::byte* codes = nullptr;  ///< of the first of these rows
  std::uint64_t columns = 0;         ///< a multiple of `rotation`
  std::uint64_t rotation = 256;      ///< a power of four, from 4 to 1024
  const float* scales = nullptr;     ///< of these rows
  std::uint64_t scale_step = 1;      ///< from the scale of a row to the next; 0: one for all

  // Of RotatedCodes::four and six:
  const std::byte* relative = nullptr;  ///< scales of groups: E4M3, or F32
  bool relative_is_f32 = false;
  std::uint64_t group = 16;         ///< columns of a group
  const float* codebook = nullptr;  ///< 16 values; nullptr: the code minus half of its range

  /// Returns the bytes of the codes of a row.
  [[nodiscard]] std::uint64_t row_bytes() const noexcept {
    switch (packing) {
      case RotatedCodes::bytes:
        return columns;
      case RotatedCodes::nibbles:
      case RotatedCodes::four:
        return columns / 2;
      case RotatedCodes::six:
        break;
    }
    return columns / 4 * 3;
  }
};

/// Decodes `rows` rows.
void dequantize_rotated(const RotatedRows& from, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt = {}, const Kernels& kernels = best_kernels());

}  // namespace safetensors::weights

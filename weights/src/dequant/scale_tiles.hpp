// Scales of a byte in tiles of 128 rows x 4 columns, the order of cuBLAS and of ComfyUI's files:
//
//     a tile has 512 bytes    byte   0..3     4..7       8..11      12..15
//     line i of 32                   row i    row i+32   row i+64   row i+96
//
// The tiles of 128 rows follow each other, then those of the next 128 rows. Rows and columns are
// padded to whole tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/divide_up.hpp"

namespace safetensors::weights {

/// Where the scales of matrices in tiles are.
struct ScaleTiles {
  static constexpr std::uint64_t kRows = 128;
  static constexpr std::uint64_t kColumns = 4;
  static constexpr std::uint64_t kBytes = kRows * kColumns;

  std::uint64_t matrix_rows = 0;  ///< of the scales of one matrix, not padded; 0: no tiles
  std::uint64_t columns = 0;      ///< scales of a row, not padded

  [[nodiscard]] bool used() const noexcept { return matrix_rows != 0; }
  /// Returns the bytes of the scales of 128 rows.
  [[nodiscard]] std::uint64_t band_bytes() const noexcept {
    return divide_up(columns, kColumns) * kBytes;
  }
  [[nodiscard]] std::uint64_t matrix_bytes() const noexcept {
    return divide_up(matrix_rows, kRows) * band_bytes();
  }
  /// Returns the first byte of the band with the scales of a row of the stack.
  [[nodiscard]] std::uint64_t band_of(std::uint64_t row) const noexcept {
    return row / matrix_rows * matrix_bytes() + row % matrix_rows / kRows * band_bytes();
  }
  /// Copies `count` scales from number `first` of a row on. `band` are the bytes of its band.
  void copy(const std::uint8_t* band, std::uint64_t row, std::uint64_t first, std::size_t count,
            std::uint8_t* to) const noexcept {
    const std::uint64_t line = row % matrix_rows % kRows;
    const std::uint8_t* from = band + line % 32 * 16 + line / 32 * 4;
    for (std::size_t i = 0; i < count;) {
      const std::uint64_t column = first + i;
      const std::uint8_t* tile = from + column / kColumns * kBytes;
      if (column % kColumns == 0 && count - i >= kColumns) {
        std::memcpy(to + i, tile, kColumns);
        i += kColumns;
      } else {
        to[i++] = tile[column % kColumns];
      }
    }
  }
};

}  // namespace safetensors::weights

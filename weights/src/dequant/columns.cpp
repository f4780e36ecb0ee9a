#include "dequant/columns.hpp"

#include <algorithm>
#include <vector>

#include "dequant/chunks.hpp"
#include "dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

/// Rows of a tile: together they use whole cache lines of the stored words.
constexpr std::uint64_t kGptqTile = 32;
constexpr std::uint64_t kAwqTile = 64;
/// Columns of a tile: its words stay in the first-level cache.
constexpr std::uint64_t kPiece = 512;
/// Words of a tile: those of gptq in 8 bits.
constexpr std::size_t kTileWords = kGptqTile * kPiece / 4;

/// The nibble of each column in a word of awq.
constexpr unsigned kAwqNibbles[] = {0, 4, 1, 5, 2, 6, 3, 7};

const std::uint8_t* bytes_of(const StoredRows& rows, std::uint64_t row, std::uint64_t offset) {
  return reinterpret_cast<const std::uint8_t*>(rows.data) + row * rows.stride + offset;
}

/// Returns bits [place, place + bits) of little-endian bytes.
/// Requires: bits <= 8, and the bits lie within the bytes.
unsigned bits_at(const std::uint8_t* from, std::uint64_t place, unsigned bits) {
  const std::uint8_t* byte = from + place / 8;
  const unsigned shift = place % 8;
  unsigned value = byte[0];
  if (shift + bits > 8) value |= static_cast<unsigned>(byte[1]) << 8;
  return (value >> shift) & ((1U << bits) - 1U);
}

std::uint64_t tile_rows(const ColumnCodes& codes) {
  return codes.layout == ColumnLayout::awq ? kAwqTile : kGptqTile;
}

/// Returns how many rows of the first word are before the first row. Tiles of awq start with whole
/// words.
std::uint64_t skipped_rows(const ColumnCodes& codes) {
  return codes.layout == ColumnLayout::awq ? codes.first_row % kAwqRows : 0;
}

/// Decodes tiles: some rows, all columns.
class TileDecoder {
 public:
  TileDecoder(const ColumnCodes& codes, std::uint64_t rows, Output output, std::byte* to,
              const Kernels& kernels)
      : codes_(codes),
        kernels_(kernels),
        sink_(kernels, output, to),
        rows_(rows),
        bits_(static_cast<unsigned>(codes.bits)),
        skipped_(skipped_rows(codes)) {}

  void operator()(std::uint64_t tile) {
    const std::uint64_t first = tile * tile_rows(codes_);  // counts skipped rows
    begin_ = first < skipped_ ? 0 : first - skipped_;
    end_ = std::min(rows_, first + tile_rows(codes_) - skipped_);
    load_parameters();
    for (std::uint64_t k = 0; k < codes_.columns; k += kPiece) {
      const std::uint64_t count = std::min(kPiece, codes_.columns - k);
      if (codes_.layout == ColumnLayout::awq) {
        awq_piece(k, count);
      } else {
        gptq_piece(k, count);
      }
    }
  }

 private:
  /// Loads scales and zeros of the tile's rows, those of one row side by side.
  void load_parameters() {
    const auto rows = static_cast<std::size_t>(end_ - begin_);
    const auto groups = static_cast<std::size_t>(codes_.groups);
    scales_.resize(rows * groups);
    zeros_.resize(rows * groups);
    const std::uint64_t scale_nbytes = size_of(codes_.scale_type);
    const Kernels::Blocks load = kernels_.blocks[plain_type(codes_.scale_type)];
    float values[kAwqTile];
    for (std::size_t g = 0; g < groups; ++g) {
      load(bytes_of(codes_.scales, g, begin_ * scale_nbytes), rows, values);
      for (std::size_t i = 0; i < rows; ++i) scales_[i * groups + g] = values[i];
    }
    if (codes_.zeros.data == nullptr) {
      std::ranges::fill(zeros_, static_cast<float>(1U << (bits_ - 1)));
      return;
    }
    const unsigned mask = (1U << bits_) - 1U;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::uint64_t row = codes_.first_row % kZeroRows + begin_ + i;
      const std::uint64_t place =
          codes_.layout == ColumnLayout::awq
              ? row / kAwqRows * 32 + std::uint64_t{4} * kAwqNibbles[row % kAwqRows]
              : row * bits_;
      for (std::size_t g = 0; g < groups; ++g) {
        const unsigned zero = bits_at(bytes_of(codes_.zeros, g, 0), place, bits_);
        zeros_[i * groups + g] = static_cast<float>((zero + codes_.added_to_zeros) & mask);
      }
    }
  }

  /// Calls decode(row, scales, zeros, to) for the rows of the tile; `row` counts within it.
  template <typename Decode>
  void put_rows(std::uint64_t k, std::uint64_t count, const Decode& decode) const {
    const auto groups = static_cast<std::size_t>(codes_.groups);
    for (std::uint64_t row = begin_; row < end_; ++row) {
      const auto i = static_cast<std::size_t>(row - begin_);
      const float* scales = scales_.data() + i * groups;
      const float* zeros = zeros_.data() + i * groups;
      sink_.put_piece(row * codes_.columns + k, static_cast<std::size_t>(count),
                      [&](float* to) { decode(i, scales, zeros, to); });
    }
  }

  /// Calls decode(k, groups, values of each, number of the first group, to) for consecutive columns
  /// of whole groups, or of a part of one group.
  template <typename Decode>
  void by_groups(std::uint64_t begin, std::uint64_t count, float* to, const Decode& decode) const {
    const std::uint64_t size = codes_.group_size;
    for (std::uint64_t k = begin; k < begin + count;) {
      const std::uint64_t left = begin + count - k;
      const std::uint64_t in_group = size - k % size;
      std::uint64_t groups = 1;
      std::uint64_t each = std::min(left, in_group);
      if (in_group == size && left >= size) {
        groups = left / size;
        each = size;
      }
      decode(k, static_cast<std::size_t>(groups), static_cast<std::size_t>(each),
             static_cast<std::size_t>(k / size), to);
      k += groups * each;
      to += groups * each;
    }
  }

  void awq_piece(std::uint64_t k, std::uint64_t count) {
    const std::uint64_t first = (skipped_ + begin_) / kAwqRows;
    const std::uint64_t words = (skipped_ + end_ + kAwqRows - 1) / kAwqRows - first;
    kernels_.transpose_words(bytes_of(codes_.words, k, 4 * first), codes_.words.stride, count,
                             words, words_);
    put_rows(k, count, [&](std::size_t i, const float* scales, const float* zeros, float* to) {
      const std::uint64_t row = skipped_ + begin_ + i;
      const std::uint8_t* column = words_ + (row / kAwqRows - first) * count * 4;
      const unsigned shift = 4 * kAwqNibbles[row % kAwqRows];
      by_groups(k, count, to,
                [&](std::uint64_t from, std::size_t groups, std::size_t each, std::size_t group,
                    float* values) {
                  kernels_.nibble_of_words(column + (from - k) * 4, shift, groups, each,
                                           scales + group, zeros + group, values);
                });
    });
  }

  void gptq_piece(std::uint64_t k, std::uint64_t count) {
    // Whole words: kPiece is a multiple of 32, as is the number of bits of all columns.
    const std::uint64_t words = count * bits_ / 32;
    kernels_.transpose_words(bytes_of(codes_.words, k * bits_ / 32, 4 * begin_),
                             codes_.words.stride, words, end_ - begin_, words_);
    put_rows(k, count, [&](std::size_t i, const float* scales, const float* zeros, float* to) {
      const std::uint8_t* stream = words_ + i * words * 4;
      const std::uint8_t* end = words_ + sizeof words_;
      if (!codes_.group_of.empty()) {
        const float one = 1.0F;
        const float zero = 0.0F;
        stream_values(stream, end, 0, 1, static_cast<std::size_t>(count), &one, &zero, to);
        kernels_.scale_by_group(codes_.group_of.data() + k, static_cast<std::size_t>(count), scales,
                                zeros, to);
        return;
      }
      by_groups(k, count, to,
                [&](std::uint64_t from, std::size_t groups, std::size_t each, std::size_t group,
                    float* values) {
                  stream_values(stream, end, from - k, groups, each, scales + group, zeros + group,
                                values);
                });
    });
  }

  /// Decodes groups of a stream of codes, the first code being number `from`.
  void stream_values(const std::uint8_t* stream, const std::uint8_t* end, std::uint64_t from,
                     std::size_t groups, std::size_t each, const float* scales, const float* zeros,
                     float* to) const {
    // Thirty-two codes are whole words.
    if (from % 32 == 0 && each % 32 == 0) {
      kernels_.integers[bits_](stream + from / 8 * bits_, end, groups, each, scales, zeros, to);
      return;
    }
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t i = 0; i < each; ++i, ++from, ++to) {
        *to = (static_cast<float>(bits_at(stream, from * bits_, bits_)) - zeros[g]) * scales[g];
      }
    }
  }

  const ColumnCodes& codes_;
  const Kernels& kernels_;
  Sink sink_;
  std::uint64_t rows_;
  unsigned bits_;
  std::uint64_t skipped_;  ///< rows of the first word of awq that are before the first one
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::vector<float> scales_;
  std::vector<float> zeros_;
  std::uint8_t words_[kTileWords * 4];  ///< transposed: those of one row side by side
};

}  // namespace

void dequantize_columns(const ColumnCodes& codes, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt, const Kernels& kernels) {
  if (rows == 0 || codes.columns == 0) return;
  const std::uint64_t tiles =
      (skipped_rows(codes) + rows + tile_rows(codes) - 1) / tile_rows(codes);
  in_chunks(tiles, static_cast<std::size_t>(tile_rows(codes) * codes.columns), interrupt,
            [&](std::uint64_t begin, std::uint64_t count) {
              TileDecoder decode(codes, rows, output, to, kernels);
              for (std::uint64_t i = 0; i < count; ++i) decode(begin + i);
            });
}

}  // namespace safetensors::weights

#include "dequant/grouped.hpp"

#include <algorithm>

#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

/// Returns the bytes of a row of codes that no other row shares.
std::uint64_t row_bytes(const GroupedRows& from) noexcept {
  switch (from.packing) {
    case GroupedPacking::row_pairs:
      return from.columns;
    case GroupedPacking::nibbles:
      return from.columns / 2;
    case GroupedPacking::e2m3:
      break;
  }
  return from.columns / 4 * 3;
}

class GroupedDecoder {
 public:
  GroupedDecoder(const GroupedRows& from, std::uint64_t rows, const Kernels& kernels)
      : from_(from), kernels_(kernels), row_bytes_(row_bytes(from)), codes_end_(row_of(rows)) {}

  /// Decodes a piece of a row, see decode_rows().
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    float scales[kScratchValues + 1];
    float offsets[kScratchValues + 1];
    const std::uint64_t first = begin / from_.group;
    const auto groups = static_cast<std::size_t>((begin + count - 1) / from_.group - first + 1);
    load(from_.scales, row, first, groups, scales);
    if (from_.offsets != nullptr) {
      load(from_.offsets, row, first, groups, offsets);
    } else {
      std::fill_n(offsets, groups, 0.0F);
    }
    in_groups(begin, count, from_.group,
              [&](std::size_t i, std::size_t some, std::size_t each, std::uint64_t group) {
                const auto number = static_cast<std::size_t>(group - first);
                decode_groups(row, begin + i, some, each, scales + number, offsets + number,
                              to + i);
              });
  }

 private:
  const std::uint8_t* row_of(std::uint64_t row) const noexcept {
    return reinterpret_cast<const std::uint8_t*>(from_.codes) + row * row_bytes_;
  }

  void decode_groups(std::uint64_t row, std::uint64_t column, std::size_t groups, std::size_t size,
                     const float* scales, const float* offsets, float* to) const {
    switch (from_.packing) {
      case GroupedPacking::row_pairs: {
        const std::uint64_t in_pairs = from_.first_row % 2 + row;
        kernels_.nibble_of_bytes(row_of(in_pairs / 2) + column,
                                 static_cast<unsigned>(in_pairs % 2 * 4), groups, size, scales, to);
        return;
      }
      case GroupedPacking::nibbles: {
        const std::uint8_t* codes = row_of(row);
        if (size % 32 == 0 && column % 2 == 0) {
          kernels_.shifted_nibbles(codes + column / 2, codes_end_, groups, size, scales, offsets,
                                   to);
        } else {
          any_nibbles(codes, column, groups, size, scales, offsets, to);
        }
        return;
      }
      case GroupedPacking::e2m3:
        kernels_.fp6(row_of(row) + column / 4 * 3, codes_end_, groups, size, scales, nullptr, to);
        return;
    }
  }

  /// Decodes groups that may begin or end within a byte.
  static void any_nibbles(const std::uint8_t* codes, std::uint64_t column, std::size_t groups,
                          std::size_t size, const float* scales, const float* offsets,
                          float* to) noexcept {
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t i = 0; i < size; ++i, ++column) {
        const int code = codes[column / 2] >> (column % 2 * 4) & 15;
        *to++ = static_cast<float>(code - 8) * scales[g] + offsets[g];
      }
    }
  }

  /// Converts scales of a row, or offsets.
  void load(const std::byte* from, std::uint64_t row, std::uint64_t group, std::size_t count,
            float* to) const noexcept {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from) + row * from_.row_step +
                     group * from_.group_step;
    for (std::size_t i = 0; i < count; ++i, at += from_.group_step) {
      if (from_.scale_type == ScaleType::u8) {
        to[i] = kE8M0Values.values[*at];
      } else {
        kernels_.blocks[plain_type(from_.scale_type)](at, 1, to + i);
      }
    }
  }

  const GroupedRows& from_;
  const Kernels& kernels_;
  std::uint64_t row_bytes_;
  const std::uint8_t* codes_end_;  ///< of rows, unless two share their bytes
};

}  // namespace

void dequantize_grouped(const GroupedRows& from, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt, const Kernels& kernels) {
  decode_rows(kernels, rows, from.columns, output, to, interrupt,
              GroupedDecoder(from, rows, kernels), {from.column_scales});
}

}  // namespace safetensors::weights

#include "weights/dequant/grouped.hpp"

#include <algorithm>

#include "weights/dequant/chunks.hpp"
#include "weights/dequant/code_tables.hpp"
#include "weights/dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

/// Values of E2M3: sign, 2 bits of exponent, 3 bits of fraction.
struct SixBitTable {
  float values[64];
};
constexpr SixBitTable make_e2m3() noexcept {
  SixBitTable table{};
  for (int code = 0; code < 64; ++code) {
    const int exponent = code >> 3 & 3;
    const auto fraction = static_cast<float>(code & 7) / 8;
    const float power = exponent == 3 ? 4.0F : exponent == 2 ? 2.0F : 1.0F;
    const float size = exponent == 0 ? fraction : (1 + fraction) * power;
    table.values[code] = code < 32 ? size : -size;
  }
  return table;
}
constexpr SixBitTable kE2M3Values = make_e2m3();

class GroupedDecoder {
 public:
  GroupedDecoder(const GroupedRows& from, const Kernels& kernels)
      : from_(from), kernels_(kernels) {}

  /// Decodes a piece of a row, see decode_rows().
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    load_codes(row, begin, count, to);
    std::uint64_t group = begin / from_.group;
    auto next = static_cast<std::size_t>(from_.group - begin % from_.group);
    for (std::size_t i = 0; i < count; ++group, next += static_cast<std::size_t>(from_.group)) {
      const std::size_t end = std::min(count, next);
      const float scale = load_one(from_.scales, row, group);
      if (from_.offsets == nullptr) {
        for (; i < end; ++i) to[i] *= scale;
      } else {
        const float offset = load_one(from_.offsets, row, group);
        for (; i < end; ++i) to[i] = to[i] * scale + offset;  // the product is exact
      }
    }
  }

 private:
  const std::uint8_t* row_of(std::uint64_t row, std::uint64_t row_bytes) const noexcept {
    return reinterpret_cast<const std::uint8_t*>(from_.codes) + row * row_bytes;
  }

  /// Writes the values of codes without their scales.
  void load_codes(std::uint64_t row, std::uint64_t begin, std::size_t count,
                  float* to) const noexcept {
    switch (from_.packing) {
      case GroupedPacking::row_pairs: {
        const std::uint64_t in_pairs = from_.first_row % 2 + row;
        const std::uint8_t* codes = row_of(in_pairs / 2, from_.columns) + begin;
        const unsigned shift = in_pairs % 2 * 4;
        for (std::size_t i = 0; i < count; ++i) {
          to[i] = static_cast<float>(((codes[i] >> shift & 15) ^ 8) - 8);
        }
        return;
      }
      case GroupedPacking::nibbles: {
        const std::uint8_t* codes = row_of(row, from_.columns / 2) + begin / 2;
        for (std::size_t i = 0; i < count / 2; ++i) {
          to[2 * i] = static_cast<float>((codes[i] & 15) - 8);
          to[2 * i + 1] = static_cast<float>((codes[i] >> 4) - 8);
        }
        return;
      }
      case GroupedPacking::e2m3: {
        const std::uint8_t* codes = row_of(row, from_.columns / 4 * 3) + begin / 4 * 3;
        for (std::size_t i = 0; i < count; i += 4, codes += 3) {
          const unsigned word = codes[0] | unsigned{codes[1]} << 8 | unsigned{codes[2]} << 16;
          for (unsigned k = 0; k < 4; ++k) to[i + k] = kE2M3Values.values[word >> (6 * k) & 63];
        }
        return;
      }
    }
  }

  float load_one(const std::byte* from, std::uint64_t row, std::uint64_t group) const noexcept {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from) + row * from_.row_step +
                     group * from_.group_step;
    if (from_.scale_type == ScaleType::u8) return kE8M0Values.values[*at];
    float value = 0;
    kernels_.blocks[plain_type(from_.scale_type)](at, 1, &value);
    return value;
  }

  const GroupedRows& from_;
  const Kernels& kernels_;
};

}  // namespace

void dequantize_grouped(const GroupedRows& from, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt, const Kernels& kernels) {
  decode_rows(kernels, rows, from.columns, output, to, interrupt, GroupedDecoder(from, kernels),
              {from.column_scales});
}

}  // namespace safetensors::weights

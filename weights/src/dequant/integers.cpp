#include "dequant/integers.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "dequant/chunks.hpp"
#include "dequant/ggml_types.hpp"
#include "dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

/// Values of one step of a kernel, which take a whole number of bytes and words.
constexpr std::uint64_t kStep = 32;
/// Groups of a piece whose groups have kStep values or more; its ends may divide one group each.
constexpr std::size_t kStepGroups = kScratchValues / kStep + 1;

std::uint32_t load_word(const std::uint8_t* from) noexcept {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  if constexpr (std::endian::native == std::endian::big) {
    word = word >> 24 | (word >> 8 & 0xFF00U) | (word << 8 & 0xFF0000U) | word << 24;
  }
  return word;
}

class IntegerDecoder {
 public:
  IntegerDecoder(const IntegerMatrices& from, const Kernels& kernels)
      : from_(from),
        kernels_(kernels),
        decode_(from.packing == Packing::bytes ? kernels.int8 : kernels.integers[from.bits]),
        middle_(from.packing == Packing::bytes ? 0.0F : static_cast<float>(1U << (from.bits - 1))),
        row_bytes_(from.row_bytes()),
        group_(from.groups == 1 ? (from.columns + kStep - 1) / kStep * kStep : from.group),
        by_groups_(from.packing != Packing::words && group_ % kStep == 0 &&
                   from.group_of_column == nullptr) {}

  /// Decodes a row.
  void row(std::uint64_t row, std::uint64_t place, const Sink& sink,
           std::vector<float>& params) const {
    if (from_.group_of_column != nullptr) {
      params.resize(2 * from_.groups);
      load_params(row, 0, from_.groups, params.data(), params.data() + from_.groups);
    }
    for (std::uint64_t begin = 0; begin < from_.columns; begin += kScratchValues) {
      const std::uint64_t count = std::min<std::uint64_t>(kScratchValues, from_.columns - begin);
      sink.put(place + begin, count, 1, [&](std::uint64_t, std::size_t, float* to) {
        if (by_groups_) {
          decode_groups(row, begin, begin + count, to);
        } else {
          unpack(row, begin, begin + count, to);
          if (from_.group_of_column != nullptr) {
            apply_by_column(begin, count, params.data(), to);
          } else {
            apply(row, begin, begin + count, to);
          }
        }
        ColumnScales{from_.column_scales}.apply(kernels_, begin, static_cast<std::size_t>(count),
                                                to);
      });
    }
  }

 private:
  /// Returns the codes from a column on, a multiple of 8.
  const std::uint8_t* codes_at(std::uint64_t row, std::uint64_t column) const {
    return from_.codes.at(row * row_bytes_ + column * static_cast<unsigned>(from_.bits) / 8);
  }
  const std::uint8_t* codes_end() const {
    return reinterpret_cast<const std::uint8_t*>(from_.codes_end);
  }

  /// Loads scales and zero points of `count` groups of a row; zero points are relative to code 0.
  void load_params(std::uint64_t row, std::uint64_t first, std::size_t count, float* scales,
                   float* zeros) const {
    const std::uint64_t matrix = row / from_.matrix_rows;
    const std::uint64_t line = row % from_.matrix_rows / from_.rows_per_scale;
    const std::uint64_t place = (matrix * from_.scale_rows() + line) * from_.groups + first;
    kernels_.blocks[plain_type(from_.scale_type)](
        from_.scales.at(place * size_of(from_.scale_type)), count, scales);
    switch (from_.zero_type) {
      case ZeroPoints::none:
        std::fill_n(zeros, count, middle_);
        return;
      case ZeroPoints::packed:
        load_packed_zeros(row, first, count, zeros);
        return;
      case ZeroPoints::i8:
        kernels_.blocks[ggml::kI8](from_.zeros.at(place), count, zeros);
        break;
      case ZeroPoints::i32:
        kernels_.blocks[ggml::kI32](from_.zeros.at(place * 4), count, zeros);
        break;
    }
    for (std::size_t i = 0; i < count; ++i) zeros[i] += middle_;
  }

  void load_packed_zeros(std::uint64_t row, std::uint64_t first, std::size_t count,
                         float* zeros) const {
    const auto bits = static_cast<unsigned>(from_.bits);
    const std::uint64_t bit = from_.zero_bit(row);
    const auto shift = static_cast<unsigned>(bit % 32);
    const std::uint64_t words = bit / 32;
    const std::uint8_t* low = from_.zeros.at((words * from_.groups + first) * 4);
    const bool divided = shift + bits > 32;
    const std::uint8_t* high =
        divided ? from_.zeros.at(((words + 1) * from_.groups + first) * 4) : low;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t field = load_word(low + i * 4) >> shift;
      if (divided) field |= load_word(high + i * 4) << (32 - shift);
      zeros[i] = static_cast<float>(field & ((1U << bits) - 1));
    }
  }

  /// Decodes columns whose groups are multiples of kStep.
  void decode_groups(std::uint64_t row, std::uint64_t begin, std::uint64_t end, float* to) const {
    float scales[kStepGroups];
    float zeros[kStepGroups];
    const std::uint64_t first = begin / group_;
    load_params(row, first, static_cast<std::size_t>((end - 1) / group_ - first + 1), scales,
                zeros);
    for (std::size_t i = 0; begin < end;) {
      const std::uint64_t rest = std::min(end, (begin / group_ + 1) * group_) - begin;
      const std::size_t whole =
          rest == group_ ? static_cast<std::size_t>((end - begin) / group_) : 1;
      if (rest == group_) {
        decode_(codes_at(row, begin), codes_end(), whole, group_, scales + i, zeros + i, to);
      } else {
        decode_run(codes_at(row, begin), static_cast<std::size_t>(rest), scales[i], zeros[i], to);
      }
      i += whole;
      begin += whole * rest;
      to += whole * rest;
    }
  }

  /// Decodes values that share scale and zero point, of which a last part may be less than a step.
  void decode_run(const std::uint8_t* codes, std::size_t count, float scale, float zero,
                  float* to) const {
    const std::size_t whole = count / kStep * kStep;
    if (whole != 0) decode_(codes, codes_end(), 1, whole, &scale, &zero, to);
    if (whole == count) return;
    const auto bits = static_cast<std::size_t>(from_.bits);
    std::uint8_t padded[kStep] = {};
    float values[kStep];
    std::memcpy(padded, codes + whole * bits / 8, ((count - whole) * bits + 7) / 8);
    decode_(padded, padded + sizeof padded, 1, kStep, &scale, &zero, values);
    std::copy_n(values, count - whole, to + whole);
  }

  /// Writes codes as floats.
  void unpack(std::uint64_t row, std::uint64_t begin, std::uint64_t end, float* to) const {
    const auto bits = static_cast<unsigned>(from_.bits);
    if (from_.packing != Packing::words) {
      decode_run(codes_at(row, begin), static_cast<std::size_t>(end - begin), 1.0F, 0.0F, to);
      return;
    }
    const unsigned in_word = 32 / bits;
    const std::uint8_t* words = from_.codes.at(row * row_bytes_);
    for (std::uint64_t k = begin; k < end; ++k) {
      const std::uint32_t word = load_word(words + k / in_word * 4);
      *to++ = static_cast<float>(word >> (k % in_word * bits) & ((1U << bits) - 1));
    }
  }

  /// Turns codes into values, for groups of any size.
  void apply(std::uint64_t row, std::uint64_t begin, std::uint64_t end, float* to) const {
    float scales[kScratchValues];
    float zeros[kScratchValues];
    const std::uint64_t first = begin / from_.group;
    load_params(row, first, static_cast<std::size_t>((end - 1) / from_.group - first + 1), scales,
                zeros);
    for (std::size_t i = 0; begin < end; ++i) {
      const std::uint64_t next = std::min(end, (first + i + 1) * from_.group);
      for (; begin < next; ++begin, ++to) *to = (*to - zeros[i]) * scales[i];
    }
  }

  /// The same, with the group of each column.
  void apply_by_column(std::uint64_t begin, std::size_t count, const float* params,
                       float* to) const {
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint32_t group = from_.group_of_column[begin + k];
      to[k] = (to[k] - params[from_.groups + group]) * params[group];
    }
  }

  const IntegerMatrices& from_;
  const Kernels& kernels_;
  Kernels::Groups decode_;
  float middle_;  ///< the code of the value 0 without zero points
  std::uint64_t row_bytes_;
  std::uint64_t group_;  ///< rounded up to a step where a row is one group
  bool by_groups_;
};

}  // namespace

std::uint64_t IntegerMatrices::row_bytes() const noexcept {
  return packing == Packing::bytes ? columns : words_of(packing, bits, columns) * 4;
}

void dequantize_integers(const IntegerMatrices& from, std::uint64_t first, std::uint64_t rows,
                         Output output, std::byte* to, const Interrupt& interrupt,
                         const Kernels& kernels) {
  if (rows == 0 || from.columns == 0) return;
  const IntegerDecoder decoder(from, kernels);
  const Sink sink(kernels, output, to);
  in_chunks(rows, static_cast<std::size_t>(from.columns), interrupt,
            [&](std::uint64_t begin, std::uint64_t count) {
              std::vector<float> params;
              for (std::uint64_t i = begin; i < begin + count; ++i) {
                decoder.row(first + i, i * from.columns, sink, params);
              }
            });
}

}  // namespace safetensors::weights

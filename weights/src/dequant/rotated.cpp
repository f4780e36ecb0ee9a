#include "dequant/rotated.hpp"

#include <algorithm>
#include <cmath>

#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

const std::uint8_t* bytes_at(const std::byte* from, std::uint64_t offset) noexcept {
  return reinterpret_cast<const std::uint8_t*>(from) + offset;
}

/// Values of the codes of four bits without a codebook.
constexpr float kSteps[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

class RotatedDecoder {
 public:
  RotatedDecoder(const RotatedRows& from, const Kernels& kernels)
      : from_(from),
        kernels_(kernels),
        row_bytes_(from.row_bytes()),
        inverse_root_(1.0F / std::sqrt(static_cast<float>(from.rotation))) {}

  /// Decodes a piece of a row, see decode_rows(): whole rotations.
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    alignas(64) std::int8_t room[kScratchValues];
    alignas(64) std::int16_t sums[kScratchValues];
    kernels_.rotate(integers(row, begin, count, room), count,
                    static_cast<std::size_t>(from_.rotation), from_.scales[row * from_.scale_step],
                    inverse_root_, sums, to);
  }

 private:
  /// Returns integers of a row, which may be in `room`.
  const std::int8_t* integers(std::uint64_t row, std::uint64_t begin, std::size_t count,
                              std::int8_t* room) const {
    const std::uint8_t* codes = bytes_at(from_.codes, row * row_bytes_);
    switch (from_.packing) {
      case RotatedCodes::bytes:
        return reinterpret_cast<const std::int8_t*>(codes + begin);
      case RotatedCodes::nibbles:
        kernels_.unpack_nibbles(codes + begin / 2, count, 8, room);
        break;
      case RotatedCodes::four:
        kernels_.unpack_nibbles(codes + begin / 2, count, 0, room);
        apply_relative(row, begin, count, room);
        break;
      case RotatedCodes::six:
        kernels_.unpack_nibbles(codes + begin / 2, count, 0, room);
        kernels_.add_upper_bits(codes + from_.columns / 2 + begin / 4, count, room);
        apply_relative(row, begin, count, room);
        break;
    }
    return room;
  }

  /// Replaces codes by the integers for which they stand.
  void apply_relative(std::uint64_t row, std::uint64_t begin, std::size_t count,
                      std::int8_t* codes) const {
    float scales[kScratchValues];
    const std::uint64_t first = begin / from_.group;
    const auto groups = static_cast<std::size_t>((begin + count - 1) / from_.group - first + 1);
    load_relative(row * (from_.columns / from_.group) + first, groups, scales);
    in_groups(begin, count, from_.group,
              [&](std::size_t i, std::size_t some, std::size_t each, std::uint64_t group) {
                round_codes(codes + i, some, each, scales + (group - first));
              });
  }

  void round_codes(std::int8_t* codes, std::size_t groups, std::size_t group_size,
                   const float* scales) const {
    if (from_.packing == RotatedCodes::six) {
      kernels_.round_six_bits(codes, groups, group_size, scales);
    } else {
      kernels_.round_nibbles(codes, groups, group_size, scales,
                             from_.codebook != nullptr ? from_.codebook : kSteps);
    }
  }

  void load_relative(std::uint64_t index, std::size_t count, float* to) const {
    if (from_.relative_is_f32) {
      kernels_.blocks[ggml::kF32](bytes_at(from_.relative, index * sizeof(float)), count, to);
      return;
    }
    const std::uint8_t* codes = bytes_at(from_.relative, index);
    for (std::size_t i = 0; i < count; ++i) to[i] = kE4M3Values.values[codes[i]];
  }

  const RotatedRows& from_;
  const Kernels& kernels_;
  std::uint64_t row_bytes_;
  float inverse_root_;
};

}  // namespace

void dequantize_rotated(const RotatedRows& from, std::uint64_t rows, Output output, std::byte* to,
                        const Interrupt& interrupt, const Kernels& kernels) {
  decode_rows(kernels, rows, from.columns, output, to, interrupt, RotatedDecoder(from, kernels));
}

}  // namespace safetensors::weights

#include "weights/dequant/rotated.hpp"

#include <algorithm>
#include <cmath>

#include "weights/dequant/chunks.hpp"
#include "weights/dequant/code_tables.hpp"
#include "weights/dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

const std::uint8_t* bytes_at(const std::byte* from, std::uint64_t offset) noexcept {
  return reinterpret_cast<const std::uint8_t*>(from) + offset;
}

/// Rounds to an integer, ties to even. A NaN becomes -127.
std::int32_t rounded(float value) noexcept {
  constexpr float kMost = 127.0F;
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: a sum with it has no fraction
  float within = value > -kMost ? value : -kMost;
  within = within < kMost ? within : kMost;
  return static_cast<std::int32_t>((within + kShift) - kShift);
}

class RotatedDecoder {
 public:
  RotatedDecoder(const RotatedRows& from, const Kernels& kernels)
      : from_(from),
        kernels_(kernels),
        row_bytes_(from.row_bytes()),
        inverse_root_(1.0F / std::sqrt(static_cast<float>(from.rotation))) {}

  /// Decodes a piece of a row, see decode_rows(): whole rotations.
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    std::int32_t values[kScratchValues] = {};
    load(row, begin, count, values);
    kernels_.rotate(values, count, static_cast<std::size_t>(from_.rotation),
                    from_.scales[row * from_.scale_step], inverse_root_, to);
  }

 private:
  void load(std::uint64_t row, std::uint64_t begin, std::size_t count, std::int32_t* to) const {
    const std::uint8_t* codes = bytes_at(from_.codes, row * row_bytes_);
    switch (from_.packing) {
      case RotatedCodes::bytes:
        for (std::size_t i = 0; i < count; ++i) {
          to[i] = (codes[begin + i] ^ 128) - 128;
        }
        return;
      case RotatedCodes::nibbles:
        for (std::size_t i = 0; i < count / 2; ++i) {
          const std::uint8_t pair = codes[begin / 2 + i];
          to[2 * i] = ((pair & 15) ^ 8) - 8;
          to[2 * i + 1] = ((pair >> 4) ^ 8) - 8;
        }
        return;
      case RotatedCodes::four:
        load_nibbles(codes + begin / 2, count, to);
        apply_relative(row, begin, count, 8, to);
        return;
      case RotatedCodes::six: {
        load_nibbles(codes + begin / 2, count, to);
        const std::uint8_t* upper = codes + from_.columns / 2 + begin / 4;
        for (std::size_t i = 0; i < count; i += 4) {
          const unsigned bits = upper[i / 4];
          to[i] |= static_cast<std::int32_t>(bits << 4 & 48);
          to[i + 1] |= static_cast<std::int32_t>(bits << 2 & 48);
          to[i + 2] |= static_cast<std::int32_t>(bits & 48);
          to[i + 3] |= static_cast<std::int32_t>(bits >> 2 & 48);
        }
        apply_relative(row, begin, count, 32, to);
        return;
      }
    }
  }

  static void load_nibbles(const std::uint8_t* codes, std::size_t count,
                           std::int32_t* to) noexcept {
    for (std::size_t i = 0; i < count / 2; ++i) {
      to[2 * i] = codes[i] & 15;
      to[2 * i + 1] = codes[i] >> 4;
    }
  }

  /// Replaces codes by the integers for which they stand.
  void apply_relative(std::uint64_t row, std::uint64_t begin, std::size_t count, int middle,
                      std::int32_t* codes) const {
    float values[kScratchValues];
    float scales[kScratchValues];
    if (from_.codebook != nullptr) {
      for (std::size_t i = 0; i < count; ++i) values[i] = from_.codebook[codes[i] & 15];
    } else {
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(codes[i] - middle);
    }
    std::uint64_t index = row * (from_.columns / from_.group) + begin / from_.group;
    auto end = static_cast<std::size_t>(from_.group - begin % from_.group);
    for (std::size_t i = 0; i < count; end += static_cast<std::size_t>(from_.group)) {
      const float scale = relative_scale(index++);
      for (const std::size_t stop = std::min(count, end); i < stop; ++i) scales[i] = scale;
    }
    for (std::size_t i = 0; i < count; ++i) codes[i] = rounded(values[i] * scales[i]);
  }

  float relative_scale(std::uint64_t index) const noexcept {
    if (!from_.relative_is_f32) return kE4M3Values.values[*bytes_at(from_.relative, index)];
    float scale = 0;
    kernels_.blocks[ggml::kF32](bytes_at(from_.relative, index * sizeof scale), 1, &scale);
    return scale;
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

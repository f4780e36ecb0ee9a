#include "weights/dequant/fp4.hpp"

#include <algorithm>

#include "weights/dequant/chunks.hpp"
#include "weights/dequant/code_tables.hpp"
#include "weights/dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

// Groups of a piece: the smallest group has 16 values.
constexpr std::size_t kMaxFp4Groups = kScratchValues / 16;

class Fp4Decoder {
 public:
  Fp4Decoder(const Fp4Matrices& from, const Kernels& kernels)
      : from_(from), kernels_(kernels), group_(static_cast<std::size_t>(from.group())) {}

  void row(std::uint64_t row, std::uint64_t place, const Sink& sink) const {
    const float global = global_scale(row);
    for (std::uint64_t begin = 0; begin < from_.columns; begin += kScratchValues) {
      const std::uint64_t count = std::min<std::uint64_t>(kScratchValues, from_.columns - begin);
      sink.put(place + begin, count, 1, [&](std::uint64_t, std::size_t values, float* to) {
        float factors[kMaxFp4Groups];
        const std::size_t groups = values / group_;
        const std::uint64_t index = row * from_.columns + begin;
        load_factors(from_.scales.at(index / group_), groups, global, factors);
        const std::uint8_t* codes = from_.codes.at(index / 2);
        kernels_.fp4(codes, codes + values / 2, groups, group_, factors, nullptr, to);
      });
    }
  }

 private:
  float global_scale(std::uint64_t row) const {
    float scale = 1;
    if (from_.scale == Fp4Scale::e8m0) return scale;
    const std::uint64_t index = row / from_.rows_per_global_scale;
    kernels_.blocks[ggml::kF32](from_.global_scales.at(index * sizeof scale), 1, &scale);
    return scale;
  }

  void load_factors(const std::uint8_t* scales, std::size_t count, float global, float* to) const {
    const CodeTable& table = from_.scale == Fp4Scale::e8m0 ? kE8M0Values : kE4M3Values;
    for (std::size_t i = 0; i < count; ++i) to[i] = table.values[scales[i]];
    if (from_.scale == Fp4Scale::e4m3_divided) {
      for (std::size_t i = 0; i < count; ++i) to[i] /= global;
    } else if (from_.scale == Fp4Scale::e4m3_multiplied) {
      for (std::size_t i = 0; i < count; ++i) to[i] *= global;
    }
  }

  const Fp4Matrices& from_;
  const Kernels& kernels_;
  std::size_t group_;
};

}  // namespace

void dequantize_fp4(const Fp4Matrices& from, std::uint64_t first, std::uint64_t rows, Output output,
                    std::byte* to, const Interrupt& interrupt, const Kernels& kernels) {
  if (rows == 0 || from.columns == 0) return;
  const Fp4Decoder decoder(from, kernels);
  const Sink sink(kernels, output, to);
  in_chunks(rows, static_cast<std::size_t>(from.columns), interrupt,
            [&](std::uint64_t begin, std::uint64_t count) {
              for (std::uint64_t i = begin; i < begin + count; ++i) {
                decoder.row(first + i, i * from.columns, sink);
              }
            });
}

}  // namespace safetensors::weights

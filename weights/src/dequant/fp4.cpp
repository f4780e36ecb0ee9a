#include "dequant/fp4.hpp"

#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

// Groups of a piece: the smallest group has 16 values.
constexpr std::size_t kMaxFp4Groups = kScratchValues / 16;

class Fp4Decoder {
 public:
  Fp4Decoder(const Fp4Matrices& from, std::uint64_t first, const Kernels& kernels)
      : from_(from),
        kernels_(kernels),
        first_(first),
        group_(static_cast<std::size_t>(from.group())) {}

  /// Decodes a piece of a row, see decode_rows().
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    const std::uint64_t stored = (first_ + row) * from_.stride + from_.offset;
    const std::uint64_t place = stored * from_.columns + begin;
    const std::size_t groups = count / group_;
    float factors[kMaxFp4Groups];
    std::uint8_t row_scales[kMaxFp4Groups];
    const std::uint8_t* scales = row_scales;
    if (from_.tiles.used()) {
      from_.tiles.copy(from_.scales.at(from_.tiles.band_of(stored)), stored, begin / group_, groups,
                       row_scales);
    } else {
      scales = from_.scales.at(place / group_);
    }
    load_factors(scales, groups, global_scale(stored), factors);
    const std::uint8_t* codes = from_.codes.at(place / 2);
    const Kernels::Groups decode = from_.high_first ? kernels_.fp4_high : kernels_.fp4;
    decode(codes, codes + count / 2, groups, group_, factors, nullptr, to);
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
  std::uint64_t first_;
  std::size_t group_;
};

}  // namespace

void dequantize_fp4(const Fp4Matrices& from, std::uint64_t first, std::uint64_t rows, Output output,
                    std::byte* to, const Interrupt& interrupt, const Kernels& kernels) {
  decode_rows(kernels, rows, from.columns, output, to, interrupt, Fp4Decoder(from, first, kernels),
              {from.column_scales});
}

}  // namespace safetensors::weights

#include "dequant/table4.hpp"

#include <algorithm>

#include "dequant/chunks.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {

// The quantiles of a normal distribution, as QLoRA's NormalFloat defines them.
constinit const FloatTable kNf4Values = {
    {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
     -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
     0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
     0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}};
// Sign, two bits of exponent and one of fraction, divided by the largest: 12.
constinit const FloatTable kFp4Values = {{0.0F, 0.0625F / 12, 8.0F / 12, 1.0F, 4.0F / 12, 0.5F,
                                          2.0F / 12, 0.25F, -0.0F, -0.0625F / 12, -8.0F / 12, -1.0F,
                                          -4.0F / 12, -0.5F, -2.0F / 12, -0.25F}};

namespace {

/// Blocks whose scales are loaded at once.
constexpr std::size_t kMaxBlocks = 64;

class TableDecoder {
 public:
  TableDecoder(const TableCodes& codes, const Kernels& kernels) : codes_(codes), kernels_(kernels) {
    if (codes.scales.map != nullptr) load_floats(codes.scales.map, 0, 256, map_);
  }

  /// Decodes `count` values from number `from` on, counted from the first that is wanted.
  void operator()(std::uint64_t from, std::size_t count, float* to) const {
    const std::uint64_t size = codes_.block_size;
    std::uint64_t place = codes_.begin + from;  // in the whole weight
    while (count != 0) {
      const std::uint64_t block = place / size;
      const std::uint64_t left = size - place % size;  // of this block
      float scales[kMaxBlocks];
      std::size_t blocks = 1;
      std::size_t each = static_cast<std::size_t>(std::min<std::uint64_t>(left, count));
      if (left == size && count >= size) {
        blocks = std::min(kMaxBlocks, count / static_cast<std::size_t>(size));
        each = static_cast<std::size_t>(size);
      }
      load_scales(block, blocks, scales);
      if (place % 2 == 0 && each % 32 == 0) {
        kernels_.table4(byte_of(place), blocks, each, codes_.table->values, scales, to);
      } else {
        part_of_block(place, each, scales[0], to);
      }
      place += blocks * each;
      to += blocks * each;
      count -= blocks * each;
    }
  }

 private:
  const std::uint8_t* byte_of(std::uint64_t place) const {
    return reinterpret_cast<const std::uint8_t*>(codes_.codes) + (place / 2 - codes_.begin / 2);
  }

  void part_of_block(std::uint64_t place, std::size_t count, float scale, float* to) const {
    for (std::size_t i = 0; i < count; ++i, ++place) {
      const unsigned byte = *byte_of(place);
      to[i] = codes_.table->values[place % 2 == 0 ? byte >> 4 : byte & 15U] * scale;
    }
  }

  void load_floats(const std::byte* from, std::uint64_t begin, std::size_t count, float* to) const {
    kernels_.blocks[ggml::kF32](reinterpret_cast<const std::uint8_t*>(from) + begin * sizeof(float),
                                count, to);
  }

  void load_scales(std::uint64_t block, std::size_t count, float* to) const {
    const BlockScales& scales = codes_.scales;
    if (scales.map == nullptr) {
      load_floats(scales.scales, block - scales.first_block, count, to);
      return;
    }
    for (std::size_t i = 0; i < count;) {
      const std::uint64_t index = (block + i) / scales.outer_block;
      const std::uint64_t left = (index + 1) * scales.outer_block - (block + i);
      const std::size_t end =
          i + static_cast<std::size_t>(std::min<std::uint64_t>(left, count - i));
      float outer = 0;
      load_floats(scales.outer, index, 1, &outer);
      for (; i < end; ++i) {
        const std::byte code = scales.scales[block - scales.first_block + i];
        const float inner = map_[std::to_integer<std::size_t>(code)];
        // The product is exact in double and so rounded once, and compilers cannot fuse it with the
        // addition.
        to[i] = static_cast<float>(static_cast<double>(inner) * outer) + scales.offset;
      }
    }
  }

  const TableCodes& codes_;
  const Kernels& kernels_;
  float map_[256];  ///< of nested scales
};

}  // namespace

void dequantize_table4(const TableCodes& codes, std::uint64_t count, Output output, std::byte* to,
                       const Interrupt& interrupt, const Kernels& kernels) {
  decode_all(kernels, count, 1, output, to, interrupt, TableDecoder(codes, kernels));
}

}  // namespace safetensors::weights

// Decodes packs of MLX: loads the scales of groups and calls the kernels.
#include <algorithm>
#include <limits>
#include <string>

#include "common/fail.hpp"
#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"
#include "dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

// The largest E2M1 times the largest E4M3. MLX divides the global scale by it.
constexpr float kNvfp4Largest = 6.0F * 448.0F;
// Groups of a piece: the smallest group has 16 values.
constexpr std::size_t kMaxGroups = kScratchValues / 16;

void check(const PackRows& pack) {
  const QuantParams& params = pack.params;
  const bool affine = params.mode == QuantMode::affine;
  if (!is_known(params)) {
    fail(Errc::quant_mismatch, {}, {},
         "no pack has " + std::to_string(params.bits) + " bits in groups of " +
             std::to_string(params.group_size));
  }
  if ((pack.scale_type == ScaleType::u8) == affine) {
    fail(Errc::quant_mismatch, {}, {}, "the scales' type is not that of the pack's mode");
  }
  if (pack.columns % static_cast<std::uint64_t>(params.group_size) != 0) {
    fail(Errc::quant_mismatch, {}, {},
         "rows of " + std::to_string(pack.columns) + " values are not whole groups of " +
             std::to_string(params.group_size));
  }
}

/// Decodes groups of a matrix. Rows follow each other without gaps, so groups can be numbered
/// across rows.
class Decoder {
 public:
  Decoder(const PackRows& pack, const Kernels& kernels, std::uint64_t rows)
      : kernels_(kernels),
        pack_(pack),
        group_values_(static_cast<std::size_t>(pack.params.group_size)),
        groups_per_row_(pack.columns / group_values_),
        code_bytes_(code_bytes(pack.params)),
        end_(at(pack.words, rows * groups_per_row_ * code_bytes_)) {
    switch (pack.params.mode) {
      case QuantMode::affine:
        decode_ = kernels.affine[pack.params.bits];
        break;
      case QuantMode::mxfp4:
      case QuantMode::nvfp4:
        decode_ = kernels.fp4;
        break;
      case QuantMode::mxfp8:
        decode_ = kernels.fp8;
        break;
    }
  }

  /// Decodes `count` groups from number `begin` on, a scratch buffer's worth at a time, because the
  /// arrays of scales have a fixed size.
  void operator()(std::uint64_t begin, std::size_t count, float* to) const {
    float scales[kMaxGroups];
    float biases[kMaxGroups];
    const std::size_t most = kScratchValues / group_values_;
    while (count != 0) {
      const std::size_t part = std::min(most, count);
      load_scales(begin, part, scales);
      if (pack_.biases != nullptr) load_plain(pack_.biases, begin, part, biases);
      decode_(at(pack_.words, begin * code_bytes_), end_, part, group_values_, scales, biases, to);
      begin += part;
      count -= part;
      to += part * group_values_;
    }
  }

 private:
  static const std::uint8_t* at(const std::byte* from, std::uint64_t offset) {
    return reinterpret_cast<const std::uint8_t*>(from) + offset;
  }

  /// Bytes of the codes of a group: whole, because groups have 16 values or more.
  static std::size_t code_bytes(const QuantParams& params) {
    return static_cast<std::size_t>(params.group_size) * static_cast<std::size_t>(params.bits) / 8;
  }

  void load_plain(const std::byte* from, std::uint64_t group, std::size_t count, float* to) const {
    kernels_.blocks[plain_type(pack_.scale_type)](at(from, group * size_of(pack_.scale_type)),
                                                  count, to);
  }

  void load_scales(std::uint64_t group, std::size_t count, float* to) const {
    if (pack_.params.mode == QuantMode::affine) {
      load_plain(pack_.scales, group, count, to);
      return;
    }
    const CodeTable& table = pack_.params.mode == QuantMode::nvfp4 ? kE4M3Values : kE8M0Values;
    const std::uint8_t* codes = at(pack_.scales, group);
    for (std::size_t i = 0; i < count; ++i) to[i] = table.values[codes[i]];
    if (pack_.global_scales == nullptr) return;
    for (std::size_t i = 0; i < count; ++i) to[i] *= global_factor(group + i);
  }

  /// nvfp4: value = E4M3(scale) * E2M1(code) * global scale / kNvfp4Largest.
  float global_factor(std::uint64_t group) const {
    const std::uint64_t index =
        (pack_.first_row + group / groups_per_row_) / pack_.rows_per_global_scale;
    float scale = 0;
    kernels_.blocks[ggml::kF32](at(pack_.global_scales, index * sizeof scale), 1, &scale);
    return scale / kNvfp4Largest;
  }

  const Kernels& kernels_;
  const PackRows& pack_;
  std::size_t group_values_;
  std::uint64_t groups_per_row_;
  std::size_t code_bytes_;
  const std::uint8_t* end_;
  Kernels::Groups decode_ = nullptr;
};

}  // namespace

bool is_known(const QuantParams& params) noexcept {
  const int bits = params.bits;
  const int group = params.group_size;
  switch (params.mode) {
    case QuantMode::affine:
      return bits >= 1 && bits <= 8 && bits != 7 && (group == 32 || group == 64 || group == 128);
    case QuantMode::mxfp4:
      return bits == 4 && group == 32;
    case QuantMode::mxfp8:
      return bits == 8 && group == 32;
    case QuantMode::nvfp4:
      return bits == 4 && group == 16;
  }
  return false;
}

void dequantize_pack(const PackRows& pack, std::uint64_t rows, Output output, std::byte* to,
                     const Interrupt& interrupt, const Kernels& kernels) {
  check(pack);
  if (rows == 0 || pack.columns == 0) return;
  const Decoder decode(pack, kernels, rows);
  const auto group_size = static_cast<std::size_t>(pack.params.group_size);
  decode_all(kernels, rows * (pack.columns / group_size), group_size, output, to, interrupt,
             decode);
}

}  // namespace safetensors::weights

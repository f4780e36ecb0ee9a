// 4-bit floats (E2M1), two in each byte, with an 8-bit scale for each group of a row:
//
//                               scale       groups of   value
//     nvfp4, compressed-tensors F8_E4M3     16          E2M1 * (scale / weight_global_scale)
//     nvfp4, modelopt           F8_E4M3     16          E2M1 * (scale * weight_scale_2)
//     mxfp4                     E8M0 (U8)   32          E2M1 * 2^(scale - 127)
//
// Codes are U8, I8 or F4; names are weight_packed and weight_scale (compressed-tensors), or weight
// and weight_scale or scale. A global scale is F32, one for all, or one for each matrix of a stack.
// modelopt's pre_quant_scale, which was meant for the inputs, multiplies the columns of the result.
#include "dequant/fp4.hpp"

#include <algorithm>
#include <string>

#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "schemes/claims.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

struct Fp4Parts {
  const SourceTensor* codes;
  const SourceTensor* scale;
  const SourceTensor* global;
  Fp4Scale kind;
  const SourceTensor* column_scales = nullptr;  ///< pre_quant_scale

  [[nodiscard]] std::vector<Part> list() const {
    return parts_of({codes, scale, global, column_scales});
  }
  [[nodiscard]] bool is_mx() const noexcept { return kind == Fp4Scale::e8m0; }
  [[nodiscard]] std::uint64_t group() const noexcept { return is_mx() ? 32 : 16; }
  /// Returns the length of a row, which the scales determine.
  [[nodiscard]] std::uint64_t columns() const { return scale->info->shape.back() * group(); }
};

class Fp4Weight final : public SchemeWeight {
 public:
  explicit Fp4Weight(const Fp4Parts& parts) : parts_(parts) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t all = row_count(info.shape);
    const StoredBytes codes = read_rows(*parts_.codes, all, rows, interrupt);
    const StoredBytes scales = read_rows(*parts_.scale, all, rows, interrupt);
    const std::vector<float> factors = floats_of(parts_.column_scales, interrupt);
    StoredBytes global;
    Fp4Matrices from;
    if (!factors.empty()) from.column_scales = factors.data();
    from.scale = parts_.kind;
    from.columns = parts_.columns();
    from.codes = {codes.bytes.data(), rows.begin * (from.columns / 2)};
    from.scales = {scales.bytes.data(), rows.begin * (from.columns / from.group())};
    if (parts_.global != nullptr) {
      global = parts_.global->bytes(interrupt);
      from.global_scales = {global.bytes.data(), 0};
      from.rows_per_global_scale = all / (global.bytes.size() / sizeof(float));
    }
    dequantize_fp4(from, rows.begin, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(*parts_.codes);
    info.shape.back() = static_cast<std::int64_t>(parts_.columns());
    info.scheme = parts_.is_mx() ? "mxfp4" : "nvfp4";
    info.code = parts_.is_mx() ? code::kMxfp4 : code::kNvfp4;
    info.type_name = info.scheme;
    info.scheme_params = {4, true, 1, parts_.group()};
  }
  bool stores_rows() const noexcept override {
    const bool has_whole = parts_.global != nullptr && parts_.codes->info->shape.size() == 2;
    return !has_whole && parts_.column_scales == nullptr;
  }

 private:
  Fp4Parts parts_;
};

bool is_e8m0(Dtype dtype) noexcept { return dtype == Dtype::kU8 || dtype == Dtype::kF8E8M0; }

bool has_fp4_codes(const SourceTensor& tensor) noexcept {
  const Dtype dtype = tensor.info->dtype;
  return dtype == Dtype::kU8 || dtype == Dtype::kI8 || dtype == Dtype::kF4;
}

/// Returns whether each group of codes has a scale. Requires: the codes have an axis.
bool has_fp4_groups(const Fp4Parts& parts) noexcept {
  const Shape codes = parts.codes->info->shape;
  const Shape scale = parts.scale->info->shape;
  const std::uint64_t in_byte = parts.codes->info->dtype == Dtype::kF4 ? 1 : 2;
  const std::uint64_t step = parts.group() / in_byte;
  return scale.size() == codes.size() && codes.back() % step == 0 &&
         scale.back() == codes.back() / step &&
         std::ranges::equal(scale.first(scale.size() - 1), codes.first(codes.size() - 1));
}

/// Returns whether the scales have the shape of tiles, and not that of groups.
bool has_fp4_tiles(const Fp4Parts& parts) noexcept {
  const Shape codes = parts.codes->info->shape;
  const Shape scale = parts.scale->info->shape;
  if (codes.size() != 2 || scale.size() != 2 || has_fp4_groups(parts)) return false;
  const std::uint64_t groups =
      divide_up(codes[1] * (parts.codes->info->dtype == Dtype::kF4 ? 1 : 2), parts.group());
  return scale[0] == divide_up(codes[0], ScaleTiles::kRows) * ScaleTiles::kRows &&
         scale[1] == divide_up(groups, ScaleTiles::kColumns) * ScaleTiles::kColumns;
}

void check_fp4_shapes(const Fp4Parts& parts) {
  const Shape codes = parts.codes->info->shape;
  if (codes.size() < 2) mismatch(parts.list(), "the weight must be a matrix");
  if (!has_fp4_groups(parts)) {
    mismatch(parts.list(),
             "rows must have a scale for each " + std::to_string(parts.group()) + " values");
  }
  if (codes.back() > std::uint64_t{1} << 60) mismatch(parts.list(), "the rows are too long");
  check_column_scales(parts.list(), parts.column_scales, parts.columns());
  if (parts.global == nullptr) return;
  if (parts.global->info->dtype != Dtype::kF32 || !is_whole_scale(*parts.global, *parts.codes)) {
    mismatch(parts.list(), "there must be one global scale in F32, or one for each matrix");
  }
}

/// Checks what the configuration says against the kind of tensors.
void check_fp4_config(const Fp4Parts& parts, const QuantConfig& config) {
  const CtGroup* group = config.groups.only();
  if (group != nullptr && group->bits && *group->bits != 4) {
    mismatch(parts.list(),
             "the configuration has " + std::to_string(*group->bits) + " bits, the tensors have 4");
  }
  if (group != nullptr && group->is_float == false) {
    mismatch(parts.list(), "the configuration has integers, the tensors are those of floats");
  }
  const bool is_other_format = config.method == "modelopt" ? config.format == "FP8"
                                                           : config.format == "pack-quantized" ||
                                                                 config.format == "int-quantized" ||
                                                                 config.format == "float-quantized";
  if (is_other_format) {
    mismatch(parts.list(), "the configuration has the format `" + clipped(config.format) +
                               "`, the tensors are those of 4-bit floats");
  }
}

void claim_fp4(const Fp4Parts& parts, const SourceTensor& by, Checkpoint& checkpoint) {
  check_fp4_shapes(parts);
  check_fp4_config(parts, checkpoint.quant());
  checkpoint.claim(by, std::string(module_of(*parts.codes)) + ".weight",
                   std::make_unique<Fp4Weight>(parts));
}

}  // namespace

void claim_fp4_packed(const SourceTensor& packed, Checkpoint& checkpoint) {
  if (packed.info->dtype != Dtype::kU8) return;
  const std::string_view module = module_of(packed);
  const SourceTensor* scale = checkpoint.find(module, ".weight_scale");
  const SourceTensor* global = checkpoint.find(module, ".weight_global_scale");
  if (scale == nullptr) return;
  if (scale->info->dtype == Dtype::kF8E4M3) {
    const Fp4Parts parts{&packed, scale, global, Fp4Scale::e4m3_divided};
    if (global == nullptr) mismatch(parts.list(), "weight_global_scale is missing");
    claim_fp4(parts, packed, checkpoint);
  } else if (is_e8m0(scale->info->dtype)) {
    claim_fp4({&packed, scale, nullptr, Fp4Scale::e8m0}, packed, checkpoint);
  }
}

void claim_fp4_modelopt(const SourceTensor& global, Checkpoint& checkpoint) {
  const std::string_view module = module_of(global);
  const SourceTensor* codes = checkpoint.find(module, ".weight");
  const SourceTensor* scale = checkpoint.find(module, ".weight_scale");
  if (codes == nullptr || scale == nullptr || !has_fp4_codes(*codes) ||
      scale->info->dtype != Dtype::kF8E4M3) {
    return;
  }
  const Fp4Parts parts{codes, scale, &global, Fp4Scale::e4m3_multiplied,
                       checkpoint.find(module, ".pre_quant_scale")};
  if (has_fp4_tiles(parts)) {
    checkpoint.refuse_module(*codes,
                             "the scales are in tiles of 128 x 4, as ComfyUI writes them, and the "
                             "marker `comfy_quant` is missing, which says so");
    return;
  }
  claim_fp4(parts, global, checkpoint);
}

void claim_fp4_mx(const SourceTensor& scale, Checkpoint& checkpoint) {
  const SourceTensor* codes = checkpoint.find(module_of(scale), ".weight");
  if (codes == nullptr || !has_fp4_codes(*codes) || !is_e8m0(scale.info->dtype)) return;
  const Fp4Parts parts{codes, &scale, nullptr, Fp4Scale::e8m0};
  // Tensors of other schemes may have the same names and types. Without a configuration, the shapes
  // decide.
  const bool fits = codes->info->shape.size() >= 2 && has_fp4_groups(parts);
  if (!fits && checkpoint.quant().method.empty()) return;
  claim_fp4(parts, scale, checkpoint);
}

}  // namespace safetensors::weights

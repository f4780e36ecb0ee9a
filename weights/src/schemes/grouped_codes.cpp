// Codes in groups of a row, in packings of their own:
//
//     int4, modelopt              weight         U8 [.., N / 2, K]: rows 2i and 2i + 1 in a byte
//     (W4A16_AWQ, W4A8_AWQ)       weight_scale   F32, F16 or BF16 [.., N, K / group]
//     mxfp6, compressed-tensors   weight_packed  U8 [.., N, K * 3 / 4]: E2M3, four in three bytes
//                                 weight_scale   U8 or E8M0 [.., N, K / 32]
//
//     value = code * scale * pre_quant_scale
//
// weight_scale_2 of W4A8_AWQ is a part, and multiplies nothing: engines round int4's values to
// E4M3(value / weight_scale_2) * weight_scale_2 before they multiply, which is not done here.
#include <algorithm>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "dequant/grouped.hpp"
#include "dequant/scale_type.hpp"
#include "schemes/claims.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

struct GroupedParts {
  GroupedPacking packing;
  const SourceTensor* codes;
  const SourceTensor* scale;
  const SourceTensor* second = nullptr;   ///< weight_scale_2
  const SourceTensor* columns = nullptr;  ///< pre_quant_scale

  [[nodiscard]] std::vector<Part> list() const { return parts_of({codes, scale, second, columns}); }
  [[nodiscard]] bool is_int4() const noexcept { return packing == GroupedPacking::row_pairs; }
  /// Returns the length of a row. No overflow: a row of the file has about as many bytes.
  [[nodiscard]] std::uint64_t row_values() const noexcept {
    const std::uint64_t stored = codes->info->shape.back();
    return is_int4() ? stored : stored / 3 * 4;
  }
  [[nodiscard]] std::uint64_t group() const noexcept {
    return row_values() / scale->info->shape.back();
  }
};

class GroupedWeight final : public SchemeWeight {
 public:
  explicit GroupedWeight(const GroupedParts& parts) : parts_(parts) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t all = row_count(info.shape);
    const std::uint64_t in_row = parts_.is_int4() ? 2 : 1;  // rows in a row of bytes
    const StoredBytes codes =
        read_rows(*parts_.codes, all / in_row,
                  {rows.begin / in_row, (rows.end + in_row - 1) / in_row}, interrupt);
    const StoredBytes scales = read_rows(*parts_.scale, all, rows, interrupt);
    const std::vector<float> factors = floats_of(parts_.columns, interrupt);
    GroupedRows from;
    from.packing = parts_.packing;
    from.codes = codes.bytes.data();
    from.columns = parts_.row_values();
    from.first_row = rows.begin;
    from.group = parts_.group();
    from.scale_type = parts_.is_int4() ? scale_type_of(parts_.scale->info->dtype) : ScaleType::u8;
    from.scales = scales.bytes.data();
    from.group_step = size_of(from.scale_type);
    from.row_step = parts_.scale->info->shape.back() * from.group_step;
    if (!factors.empty()) from.column_scales = factors.data();
    dequantize_grouped(from, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(*parts_.scale);
    info.shape.back() = static_cast<std::int64_t>(parts_.row_values());
    info.scheme = parts_.is_int4() ? "int4" : "mxfp6";
    info.code = parts_.is_int4() ? code::kInt4 : code::kMxfp6;
    info.type_name = info.scheme;
    info.scheme_params = {static_cast<std::uint8_t>(parts_.is_int4() ? 4 : 6), true, 1,
                          parts_.group()};
  }
  bool stores_rows() const noexcept override {
    return parts_.second == nullptr && parts_.columns == nullptr && !parts_.is_int4();
  }

 private:
  GroupedParts parts_;
};

/// Returns whether the shapes are those of the packing: equal leading axes, and whole groups.
bool fits_packing(const GroupedParts& parts) noexcept {
  const auto& codes = parts.codes->info->shape;
  const auto& scale = parts.scale->info->shape;
  if (codes.size() < 2 || scale.size() != codes.size()) return false;
  const std::size_t stack = codes.size() - 2;
  if (!std::ranges::equal(codes.first(stack), scale.first(stack))) return false;
  const std::uint64_t rows = codes[stack];
  const std::uint64_t groups = scale.back();
  if (rows == 0 || groups == 0 || codes.back() == 0) return false;
  if (!parts.is_int4())
    return scale[stack] == rows && codes.back() / groups == 24 && codes.back() % groups == 0;
  return scale[stack] % 2 == 0 && scale[stack] / 2 == rows && codes.back() % groups == 0;
}

}  // namespace

void claim_int4(const SourceTensor& scale, Checkpoint& checkpoint) {
  const std::string_view module = module_of(scale);
  const SourceTensor* codes = checkpoint.find(module, ".weight");
  if (codes == nullptr || codes->info->dtype != Dtype::kU8 || !is_scale_type(scale.info->dtype)) {
    return;
  }
  const GroupedParts parts{GroupedPacking::row_pairs, codes, &scale,
                           checkpoint.find(module, ".weight_scale_2"),
                           checkpoint.find(module, ".pre_quant_scale")};
  const QuantConfig& config = checkpoint.quant();
  // Tensors of other schemes may have the same names and types. Only those of modelopt must fit.
  const bool is_modelopt = config.method == "modelopt";
  if (!is_modelopt && !config.method.empty()) return;
  if (!fits_packing(parts)) {
    if (!is_modelopt) return;
    mismatch(parts.list(), "there must be a scale for each group of columns of two rows in a byte");
  }
  const auto& stated = config.group_size;
  if (stated && config.format.starts_with("W4A") && *stated > 0 &&
      static_cast<std::uint64_t>(*stated) != parts.group()) {
    mismatch(parts.list(), "the configuration has groups of " + std::to_string(*stated) +
                               ", the scales are those of " + std::to_string(parts.group()));
  }
  if (parts.second != nullptr &&
      (parts.second->info->dtype != Dtype::kF32 || !is_whole_scale(*parts.second, *codes))) {
    mismatch(parts.list(), "there must be one weight_scale_2 in F32, or one for each matrix");
  }
  check_column_scales(parts.list(), parts.columns, codes->info->shape.back());
  checkpoint.claim(scale, std::string(module) + ".weight", std::make_unique<GroupedWeight>(parts));
}

void claim_mxfp6(const SourceTensor& packed, Checkpoint& checkpoint) {
  const std::string_view module = module_of(packed);
  const SourceTensor* scale = checkpoint.find(module, ".weight_scale");
  if (packed.info->dtype != Dtype::kU8 || scale == nullptr) return;
  if (scale->info->dtype != Dtype::kU8 && scale->info->dtype != Dtype::kF8E8M0) return;
  const GroupedParts parts{GroupedPacking::e2m3, &packed, scale};
  if (!fits_packing(parts)) return;  // mxfp4, or an error
  const QuantConfig& config = checkpoint.quant();
  const CtGroup* group = config.groups.only();
  if (group != nullptr && group->bits && *group->bits != 6) {
    mismatch(parts.list(),
             "the configuration has " + std::to_string(*group->bits) + " bits, the tensors have 6");
  }
  if (group != nullptr && group->is_float == false) {
    mismatch(parts.list(), "the configuration has integers, the tensors are those of floats");
  }
  checkpoint.claim(packed, std::string(module) + ".weight", std::make_unique<GroupedWeight>(parts));
}

}  // namespace safetensors::weights

// FP8: a matrix of 8-bit floats, and scales that multiply them, also where a name says "inv".
//
//     value[i, k] = f32(code[i, k]) * f32(scale[i / block rows, k / block columns])
//
// A scale for the whole tensor is a block of all rows, a scale for each row a block of one row.
// Blocks at the lower and right edge may be smaller. Stacks of matrices, [experts, rows, columns],
// have one matrix of scales each, or share a single scale.
//
// Two more factors: ComfyUI's scale_weight_tensor multiplies all scales, and modelopt's
// pre_quant_scale, which was meant for the inputs, multiplies the columns of the result. Old files
// of compressed-tensors have zero points, which must be 0.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/scale_type.hpp"
#include "dequant/scaled.hpp"
#include "schemes/blocks.hpp"
#include "schemes/claims.hpp"
#include "schemes/parts.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

std::string shown(const Blocks& blocks) {
  return std::to_string(blocks.rows) + " x " + std::to_string(blocks.columns);
}

std::string_view name_of(Dtype dtype, bool is_mx) noexcept {
  switch (dtype) {
    case Dtype::kF8E5M2:
      return is_mx ? "mxfp8_e5m2" : "fp8_e5m2";
    case Dtype::kF8E4M3FNUZ:
      return "fp8_e4m3fnuz";
    case Dtype::kF8E5M2FNUZ:
      return "fp8_e5m2fnuz";
    default:
      return is_mx ? "mxfp8_e4m3" : "fp8_e4m3";
  }
}

struct Fp8Parts {
  const SourceTensor* weight;
  const SourceTensor* scale;
  const SourceTensor* global = nullptr;   ///< scale_weight_tensor
  const SourceTensor* columns = nullptr;  ///< pre_quant_scale
  const SourceTensor* zero = nullptr;     ///< weight_zero_point

  [[nodiscard]] std::vector<Part> list() const {
    return parts_of({weight, scale, global, columns, zero});
  }
};

class Fp8Weight final : public SchemeWeight {
 public:
  Fp8Weight(const Fp8Parts& parts, Blocks blocks) : parts_(parts), blocks_(blocks) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t columns = row_length(info.shape);
    const std::uint64_t rows_of_matrix = static_cast<std::uint64_t>(info.shape.end()[-2]);
    check_zeros(interrupt);
    const StoredBytes codes = read_rows(*parts_.weight, row_count(info.shape), rows, interrupt);
    const StoredBytes scales = parts_.scale->bytes(interrupt);
    const std::vector<float> global = floats_of(parts_.global, interrupt);
    const std::vector<float> factors = floats_of(parts_.columns, interrupt);
    ScaledRows from;
    from.type = parts_.weight->info->dtype;
    from.scale_type = parts_.scale->info->dtype;
    from.codes = codes.bytes.data();
    from.scales = scales.bytes.data();
    from.columns = columns;
    from.first_row = rows.begin;
    from.matrix_rows = rows_of_matrix;
    from.block_rows = blocks_.rows;
    from.block_columns = blocks_.columns;
    from.shares_scales = is_single(parts_.scale->info->shape);
    if (!global.empty()) from.global_scale = global.front();
    if (!factors.empty()) from.column_scales = factors.data();
    dequantize_scaled(from, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(*parts_.weight);
    const Dtype scale = parts_.scale->info->dtype;
    const bool is_mx = blocks_.rows == 1 && blocks_.columns == 32 &&
                       (scale == Dtype::kU8 || scale == Dtype::kF8E8M0);
    info.scheme = is_mx ? "mxfp8" : "fp8";
    info.code = is_mx ? code::kMxfp8 : code::kFp8;
    info.type_name = name_of(parts_.weight->info->dtype, is_mx);
    info.scheme_params = {8, true, blocks_.rows, blocks_.columns};
  }
  bool stores_rows() const noexcept override {
    return parts_.global == nullptr && parts_.columns == nullptr;
  }

 private:
  void check_zeros(const Interrupt& interrupt) const {
    if (parts_.zero == nullptr) return;
    const StoredBytes zeros = parts_.zero->bytes(interrupt);
    if (std::ranges::all_of(zeros.bytes, [](std::byte byte) { return byte == std::byte{}; }))
      return;
    fail(Errc::unsupported, parts_.zero->file->path(), parts_.zero->info->name,
         "zero points other than 0 are not decoded for weights of F8");
  }

  Fp8Parts parts_;
  Blocks blocks_;
};

/// Returns the shape of scales without axes of 1 that the weight does not have, the last ones
/// first: modelopt writes blocks as [rows, 1, columns, 1].
std::vector<std::uint64_t> squeezed(Shape scale, std::size_t axes) {
  std::vector<std::uint64_t> shape(scale.begin(), scale.end());
  for (std::size_t i = shape.size(); i-- > 0 && shape.size() > axes;) {
    if (shape[i] == 1) shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return shape;
}

/// Returns the blocks by the shapes of weight and scales, or nothing if they do not fit. `stated`
/// are the configuration's.
std::optional<Blocks> find_blocks(Shape weight, Shape scale, const Blocks& stated) noexcept {
  const std::uint64_t rows = weight.end()[-2];
  const std::uint64_t columns = weight.end()[-1];
  if (rows == 0 || columns == 0) return Blocks{1, 1};  // there is nothing to decode
  if (is_single(scale)) return Blocks{rows, columns};
  const Shape stack = weight.first(weight.size() - 2);
  if (scale.size() == 1 && stack.empty() && scale[0] == rows) return Blocks{1, columns};
  if (scale.size() == 1 && stack.size() == 1 && scale[0] == stack[0]) return Blocks{rows, columns};
  if (scale.size() != weight.size() || !std::ranges::equal(stack, scale.first(stack.size()))) {
    return std::nullopt;
  }
  const std::uint64_t scale_rows = scale.end()[-2];
  const std::uint64_t scale_columns = scale.end()[-1];
  // The stated size must fit along both axes to be used along either.
  if (divide_up(rows, stated.rows) == scale_rows &&
      divide_up(columns, stated.columns) == scale_columns) {
    return stated;
  }
  const Blocks blocks{block_along(rows, scale_rows), block_along(columns, scale_columns)};
  if (blocks.rows == 0 || blocks.columns == 0) return std::nullopt;
  return blocks;
}

/// Claims codes and scales for the plain name.
void claim_scaled(const Fp8Parts& parts, std::string plain, const SourceTensor& by,
                  Checkpoint& checkpoint) {
  const std::vector<Part> list = parts.list();
  const Dtype type = parts.scale->info->dtype;
  if (!is_scale_type(type) && type != Dtype::kU8 && type != Dtype::kF8E8M0) {
    mismatch(list, "scales are of the wrong type");
  }
  const Shape shape = parts.weight->info->shape;
  if (shape.size() < 2) mismatch(list, "the weight must be a matrix");
  if (parts.global != nullptr &&
      (parts.global->info->dtype != Dtype::kF32 || count_of(*parts.global) != 1)) {
    mismatch(list, "scale_weight_tensor must be one F32");
  }
  check_column_scales(list, parts.columns, shape.back());
  const auto& configured = checkpoint.quant().block_size;
  const Blocks stated = configured ? Blocks{(*configured)[0], (*configured)[1]} : Blocks{128, 128};
  const std::vector<std::uint64_t> scales = squeezed(parts.scale->info->shape, shape.size());
  const auto blocks = find_blocks(shape, scales, stated);
  if (!blocks) {
    mismatch(list, "the scales' shape fits neither blocks of " + shown(stated) +
                       " nor equal parts of the weight");
  }
  const bool is_grid = parts.scale->info->shape.size() >= 2;
  if (configured && is_grid && (blocks->rows != stated.rows || blocks->columns != stated.columns)) {
    checkpoint.remark(by.info->name, "weight_block_size is " + shown(stated) +
                                         ", but the scales' shapes are those of blocks of " +
                                         shown(*blocks));
  }
  checkpoint.claim(by, std::move(plain), std::make_unique<Fp8Weight>(parts, *blocks));
}

}  // namespace

void claim_fp8(const SourceTensor& scale, Checkpoint& checkpoint) {
  const std::string_view name = scale.info->name;
  const std::string_view role = part_of(scale).role;
  Fp8Parts parts{nullptr, &scale};
  std::string_view module;
  if (role == "scale" || role == "qscale_weight" || role == "scale_weight") {
    module = module_of(scale);
    parts.weight = checkpoint.find(module, ".weight");
  } else {
    // "M.weight_scale" belongs to "M.weight", and "X_scale_inv" to the stacked experts X.
    const std::string_view stacked =
        name.substr(0, name.rfind(name.ends_with("_inv") ? "_scale_inv" : "_scale"));
    parts.weight = checkpoint.find(stacked, {});
    module = stacked.ends_with(".weight") ? stacked.substr(0, stacked.rfind('.')) : stacked;
  }
  if (parts.weight == nullptr || !is_f8(parts.weight->info->dtype)) return;
  if (role == "scale_weight") parts.global = checkpoint.find(module, ".scale_weight_tensor");
  parts.columns = checkpoint.find(module, ".pre_quant_scale");
  parts.zero = checkpoint.find(module, ".weight_zero_point");
  claim_scaled(parts, std::string(parts.weight->info->name), scale, checkpoint);
}

void claim_floats(const SourceTensor& codes, const SourceTensor& scale, std::string name,
                  Checkpoint& checkpoint) {
  if (!is_f8(codes.info->dtype)) return;
  claim_scaled({&codes, &scale}, std::move(name), codes, checkpoint);
}

}  // namespace safetensors::weights

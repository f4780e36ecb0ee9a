// FP8: a matrix of 8-bit floats, and scales that multiply them, also where a name says "inv".
//
//     value[i, k] = f32(code[i, k]) * f32(scale[i / block rows, k / block columns])
//
// A scale for the whole tensor is a block of all rows, a scale for each row a block of one row.
// Blocks at the lower and right edge may be smaller. Stacks of matrices, [experts, rows, columns],
// have one matrix of scales each, or share a single scale.
#include <string>

#include "weights/dequant/scale_type.hpp"
#include "weights/dequant/scaled.hpp"
#include "weights/divide_up.hpp"
#include "weights/fail.hpp"
#include "weights/schemes/blocks.hpp"
#include "weights/schemes/claims.hpp"
#include "weights/schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

bool is_f8(Dtype dtype) noexcept {
  return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2 || dtype == Dtype::kF8E4M3FNUZ ||
         dtype == Dtype::kF8E5M2FNUZ;
}

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

class Fp8Weight final : public SchemeWeight {
 public:
  Fp8Weight(const SourceTensor& weight, const SourceTensor& scale, Blocks blocks)
      : weight_(weight), scale_(scale), blocks_(blocks) {}

  std::vector<Part> parts() const override { return {part_of(weight_), part_of(scale_)}; }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t columns = row_length(info.shape);
    const std::uint64_t rows_of_matrix = static_cast<std::uint64_t>(info.shape.end()[-2]);
    const StoredBytes codes = read_rows(weight_, row_count(info.shape), rows, interrupt);
    const StoredBytes scales = scale_.bytes(interrupt);
    ScaledRows from;
    from.type = weight_.info->dtype;
    from.scale_type = scale_.info->dtype;
    from.codes = codes.bytes.data();
    from.scales = scales.bytes.data();
    from.columns = columns;
    from.first_row = rows.begin;
    from.matrix_rows = rows_of_matrix;
    from.block_rows = blocks_.rows;
    from.block_columns = blocks_.columns;
    from.shares_scales = is_single(scale_.info->shape);
    dequantize_scaled(from, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(weight_);
    const bool is_mx = blocks_.rows == 1 && blocks_.columns == 32 &&
                       (scale_.info->dtype == Dtype::kU8 || scale_.info->dtype == Dtype::kF8E8M0);
    info.scheme = is_mx ? "mxfp8" : "fp8";
    info.code = is_mx ? code::kMxfp8 : code::kFp8;
    info.type_name = name_of(weight_.info->dtype, is_mx);
    info.scheme_params = {8, true, blocks_.rows, blocks_.columns};
  }
  bool stores_rows() const noexcept override { return true; }

 private:
  const SourceTensor& weight_;
  const SourceTensor& scale_;
  Blocks blocks_;
};

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

}  // namespace

void claim_fp8(const SourceTensor& scale, Checkpoint& checkpoint) {
  const std::string_view name = scale.info->name;
  const std::string_view role = part_of(scale).role;
  const SourceTensor* weight = nullptr;
  std::string_view module;
  if (role == "scale" || role == "qscale_weight") {
    module = name.substr(0, name.size() - role.size() - 1);
    weight = checkpoint.find(module, ".weight");
  } else {
    // "M.weight_scale" belongs to "M.weight", and "X_scale_inv" to the stacked experts X.
    module = name.substr(0, name.rfind(name.ends_with("_inv") ? "_scale_inv" : "_scale"));
    weight = checkpoint.find(module, {});
  }
  if (weight == nullptr || !is_f8(weight->info->dtype)) return;
  const Part parts[] = {part_of(*weight), part_of(scale)};
  const Dtype type = scale.info->dtype;
  if (!is_scale_type(type) && type != Dtype::kU8 && type != Dtype::kF8E8M0) {
    mismatch(parts, "scales are of the wrong type");
  }
  if (weight->info->shape.size() < 2) mismatch(parts, "the weight must be a matrix");
  const auto& configured = checkpoint.quant().block_size;
  const Blocks stated = configured ? Blocks{(*configured)[0], (*configured)[1]} : Blocks{128, 128};
  const auto blocks = find_blocks(weight->info->shape, scale.info->shape, stated);
  if (!blocks) {
    mismatch(parts, "the scales' shape fits neither blocks of " + shown(stated) +
                        " nor equal parts of the weight");
  }
  const bool is_grid = scale.info->shape.size() >= 2;
  if (configured && is_grid && (blocks->rows != stated.rows || blocks->columns != stated.columns)) {
    checkpoint.remark(name, "weight_block_size is " + shown(stated) +
                                ", but the scales' shapes are those of blocks of " +
                                shown(*blocks));
  }
  std::string plain(weight->info->name);
  if (!plain.ends_with(".weight")) plain += ".weight";
  checkpoint.claim(scale, std::move(plain), std::make_unique<Fp8Weight>(*weight, scale, *blocks));
}

}  // namespace safetensors::weights

// Integers of 8 bits, as compressed-tensors ("int-quantized", "naive-quantized") and modelopt write
// them:
//
//     weight             I8 [.., N, K]
//     weight_scale       for rows, groups of a row, blocks, or everything
//     weight_zero_point  I8 or I32, of the scales' shape; absent: 0
//
//     pre_quant_scale    F16, BF16 or F32 [K], meant for the inputs (modelopt's SmoothQuant)
//
//     value = (code - zero) * scale * pre_quant_scale
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/integers.hpp"
#include "dequant/scale_type.hpp"
#include "schemes/blocks.hpp"
#include "schemes/claims.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

struct Int8Parts {
  const SourceTensor* weight;
  const SourceTensor* scale;
  const SourceTensor* zero = nullptr;
  const SourceTensor* columns = nullptr;  ///< pre_quant_scale

  [[nodiscard]] std::vector<Part> list() const { return parts_of({weight, scale, zero, columns}); }
};

class Int8Weight final : public SchemeWeight {
 public:
  Int8Weight(const Int8Parts& parts, Blocks blocks) : parts_(parts), blocks_(blocks) {}

  std::vector<Part> parts() const override { return parts_.list(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t all = row_count(info.shape);
    const Shape shape = parts_.weight->info->shape;
    const bool has_one_scale = is_single(parts_.scale->info->shape);
    const StoredBytes codes = read_rows(*parts_.weight, all, rows, interrupt);
    const StoredBytes scales = parts_.scale->bytes(interrupt);
    const std::vector<float> factors = floats_of(parts_.columns, interrupt);
    StoredBytes zeros;
    IntegerMatrices from;
    from.packing = Packing::bytes;
    from.bits = 8;
    from.matrix_rows = has_one_scale ? all : shape.end()[-2];
    from.columns = shape.back();
    from.rows_per_scale = has_one_scale ? all : blocks_.rows;
    from.group = blocks_.columns;
    from.groups = divide_up(from.columns, blocks_.columns);
    from.scale_type = scale_type_of(parts_.scale->info->dtype);
    from.codes = {codes.bytes.data(), rows.begin * from.columns};
    from.codes_end = codes.bytes.data() + codes.bytes.size();
    from.scales = {scales.bytes.data(), 0};
    if (!factors.empty()) from.column_scales = factors.data();
    if (parts_.zero != nullptr) {
      zeros = parts_.zero->bytes(interrupt);
      from.zero_type = zero_type_of(parts_.zero->info->dtype);
      from.zeros = {zeros.bytes.data(), 0};
    }
    dequantize_integers(from, rows.begin, rows.end - rows.begin, output, to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(*parts_.weight);
    info.scheme = "int8";
    info.code = code::kInt8;
    info.type_name = "int8";
    info.scheme_params = {8, parts_.zero == nullptr, blocks_.rows, blocks_.columns};
  }
  bool stores_rows() const noexcept override { return parts_.columns == nullptr; }

 private:
  Int8Parts parts_;
  Blocks blocks_;
};

Blocks find_int8_blocks(const Int8Parts& parts, const QuantConfig& config) {
  const Shape weight = parts.weight->info->shape;
  const Shape scale = parts.scale->info->shape;
  const std::uint64_t rows = weight.end()[-2];
  const std::uint64_t columns = weight.end()[-1];
  if (rows == 0 || columns == 0) return {};  // there is nothing to decode
  if (is_single(scale)) return {rows, columns};
  const std::size_t stack = weight.size() - 2;
  if (scale.size() == stack + 1 && std::ranges::equal(scale, weight.first(stack + 1))) {
    return {1, columns};
  }
  if (scale.size() == weight.size() &&
      std::ranges::equal(scale.first(stack), weight.first(stack))) {
    const CtGroup* group = config.groups.only();
    const auto group_size =
        static_cast<std::uint64_t>(group != nullptr ? group->group_size.value_or(0) : 0);
    const bool has_blocks = config.block_size && scale.end()[-2] != rows;
    const Blocks blocks{
        block_along(rows, scale.end()[-2], has_blocks ? (*config.block_size)[0] : 0),
        block_along(columns, scale.end()[-1], has_blocks ? (*config.block_size)[1] : group_size)};
    if (blocks.rows != 0 && blocks.columns != 0) return blocks;
  }
  mismatch(parts.list(), "the scales' shape does not fit the weight's");
}

void claim_checked(const Int8Parts& parts, std::string name, const SourceTensor& by,
                   Checkpoint& checkpoint) {
  if (parts.weight->info->shape.size() < 2) mismatch(parts.list(), "the weight must be a matrix");
  check_column_scales(parts.list(), parts.columns, parts.weight->info->shape.back());
  const Blocks blocks = find_int8_blocks(parts, checkpoint.quant());
  checkpoint.claim(by, std::move(name), std::make_unique<Int8Weight>(parts, blocks));
}

}  // namespace

void claim_int8(const SourceTensor& scale, Checkpoint& checkpoint) {
  const std::string_view module = module_of(scale);
  const SourceTensor* weight = checkpoint.find(module, ".weight");
  if (weight == nullptr || weight->info->dtype != Dtype::kI8 || !is_scale_type(scale.info->dtype)) {
    return;
  }
  const Int8Parts parts{weight, &scale, checkpoint.find(module, ".weight_zero_point"),
                        checkpoint.find(module, ".pre_quant_scale")};
  const QuantConfig& config = checkpoint.quant();
  const CtGroup* group = config.groups.only();
  if (group != nullptr && group->is_float == true) {
    mismatch(parts.list(), "the configuration has floats, the tensors are those of integers");
  }
  const std::optional<bool> symmetric = group != nullptr ? group->symmetric : config.symmetric;
  if (parts.zero == nullptr && symmetric == false) {
    mismatch(parts.list(), "the configuration is not symmetric, but there is no weight_zero_point");
  }
  if (parts.zero != nullptr) {
    if (zero_type_of(parts.zero->info->dtype) == ZeroPoints::none ||
        !std::ranges::equal(parts.zero->info->shape, scale.info->shape)) {
      mismatch(parts.list(), "zero points must be I8 or I32 of the scales' shape");
    }
    if (symmetric == true) {
      checkpoint.remark(weight->info->name,
                        "has zero points, although the configuration is symmetric");
    }
  }
  claim_checked(parts, std::string(module) + ".weight", scale, checkpoint);
}

void claim_integers(const SourceTensor& codes, const SourceTensor& scale, std::string name,
                    Checkpoint& checkpoint) {
  claim_checked({&codes, &scale}, std::move(name), codes, checkpoint);
}

}  // namespace safetensors::weights

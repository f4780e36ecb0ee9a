// MXFP4 of gpt-oss, as transformers stores it, for E experts of N rows and K columns:
//
//     X_blocks   U8 [E, N, K / 32, 16]   32 codes of four bits, the first in the low nibble
//     X_scales   U8 [E, N, K / 32]       powers of two
//     X_bias     [E, N]
//
// X is "down_proj", or "gate_up_proj", in which rows 0, 2, 4 ... are those of the gate and rows 1,
// 3, 5 ... those of up. These become two weights, and two biases.
//
// OpenAI's own files have the same tensors as X.blocks and X.scales, for parameters X of their own
// model: mlp1_weight, whose rows alternate likewise and stay so, and mlp2_weight.
#include <algorithm>
#include <string>

#include "base/checked.hpp"
#include "dequant/fp4.hpp"
#include "model/effective_type.hpp"
#include "schemes/claims.hpp"
#include "schemes/scheme.hpp"
#include "tensors/stored_weight.hpp"

namespace safetensors::weights {
namespace {

constexpr std::uint64_t kGroup = 32;

/// Which rows of its tensors a weight has: every `stride`-th, from `first` on.
struct Rows {
  std::uint32_t stride = 1;
  std::uint32_t first = 0;
};

/// Copies the rows of a tensor, which are pieces of `row` bytes, one behind the other.
void copy_rows(const SourceTensor& tensor, std::uint64_t row, Rows rows, std::span<std::byte> to,
               const Interrupt& interrupt) {
  if (rows.stride == 1) {
    tensor.read(to, interrupt);
    return;
  }
  const StoredBytes stored = tensor.bytes(interrupt);
  const auto size = static_cast<std::size_t>(row);
  for (std::size_t begin = 0; begin < to.size(); begin += size) {
    std::ranges::copy(stored.bytes.subspan(begin * rows.stride + rows.first * size, size),
                      to.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

class Mxfp4Weight final : public SchemeWeight {
 public:
  Mxfp4Weight(const SourceTensor& blocks, const SourceTensor& scales, Rows rows)
      : blocks_(blocks), scales_(scales), rows_(rows) {}

  std::vector<Part> parts() const override { return {part_of(blocks_), part_of(scales_)}; }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t all = row_count(info.shape) * rows_.stride;
    const RowRange stored{rows.begin * rows_.stride, rows.end * rows_.stride};
    const StoredBytes blocks = read_rows(blocks_, all, stored, interrupt);
    const StoredBytes scales = read_rows(scales_, all, stored, interrupt);
    Fp4Matrices from;
    from.columns = row_length(info.shape);
    from.codes = {blocks.bytes.data(), 0};
    from.scales = {scales.bytes.data(), 0};
    from.stride = rows_.stride;
    from.offset = rows_.first;
    dequantize_fp4(from, 0, rows.end - rows.begin, output, to, interrupt);
  }

  WeightBuffer::Sections sections(const ModelOptions& /*options*/) const override {
    return {static_cast<std::size_t>(blocks_.info->nbytes() / rows_.stride),
            static_cast<std::size_t>(scales_.info->nbytes() / rows_.stride)};
  }

  void write(std::size_t section, std::span<std::byte> to, const ModelOptions& /*options*/,
             const Interrupt& interrupt) const override {
    const std::uint64_t groups = scales_.info->shape.back();
    copy_rows(section == 0 ? blocks_ : scales_, section == 0 ? groups * kGroup / 2 : groups, rows_,
              to, interrupt);
  }

 protected:
  void describe(WeightInfo& info) const override {
    info.shape = signed_shape(scales_);
    info.shape.back() *= static_cast<std::int64_t>(kGroup);  // no overflow: checked when claimed
    info.shape.end()[-2] /= rows_.stride;
    info.stored_bytes /= rows_.stride;
    info.scheme = "mxfp4";
    info.type_name = "mxfp4";
    info.code = code::kMxfp4;
    info.scheme_params = {4, true, 1, kGroup};
  }
  bool stores_rows() const noexcept override { return rows_.stride == 1; }

 private:
  const SourceTensor& blocks_;
  const SourceTensor& scales_;
  Rows rows_;
};

/// The biases of gate or up: every second number of a tensor.
class HalfOfBias final : public StoredWeight {
 public:
  HalfOfBias(const SourceTensor& bias, Rows rows) : bias_(bias), rows_(rows) {}

  void fill(const ModelOptions& options, WeightInfo& info) const override {
    info.shape = signed_shape(bias_);
    info.shape.back() /= rows_.stride;
    info.stored_bytes = bias_.info->nbytes() / rows_.stride;
    const EffectiveType type = effective_type(is_halved(options) ? Dtype::kF16 : bias_.info->dtype);
    info.code = type.code;
    info.type_name = type.name;
  }

  std::vector<Part> parts() const override { return {part_of(bias_)}; }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const std::uint64_t size = value_size() * row_length(info.shape);
    std::vector<std::byte> values(static_cast<std::size_t>(bias_.info->nbytes() / rows_.stride));
    copy_rows(bias_, value_size(), rows_, values, interrupt);
    convert_values(bias_.info->dtype, values.data() + rows.begin * size,
                   (rows.end - rows.begin) * row_length(info.shape), output, to, interrupt);
  }

  bool fuses_with(const WeightInfo& /*info*/, const StoredWeight& /*other*/,
                  const WeightInfo& /*next*/, const ModelOptions& /*options*/) const override {
    return false;
  }

  WeightBuffer::Sections sections(const ModelOptions& /*options*/) const override {
    return {static_cast<std::size_t>(bias_.info->nbytes() / rows_.stride)};
  }

  void write(std::size_t /*section*/, std::span<std::byte> to, const ModelOptions& options,
             const Interrupt& interrupt) const override {
    copy_rows(bias_, value_size(), rows_, to, interrupt);
    if (!is_halved(options)) return;
    const std::vector<std::byte> stored(to.begin(), to.end());
    write_f16(bias_, stored, to, options, interrupt);
  }

 private:
  bool is_halved(const ModelOptions& options) const noexcept {
    return options.bf16_to_f16 && bias_.info->dtype == Dtype::kBF16;
  }
  std::uint64_t value_size() const noexcept { return bit_size(bias_.info->dtype) / 8; }

  const SourceTensor& bias_;
  Rows rows_;
};

bool are_bytes(const SourceTensor& blocks, const SourceTensor& scales) noexcept {
  return blocks.info->dtype == Dtype::kU8 && scales.info->dtype == Dtype::kU8;
}

/// Returns whether the shape of the blocks is that of the scales and 16 bytes.
bool are_groups(const SourceTensor& blocks, const SourceTensor& scales) noexcept {
  const auto& codes = blocks.info->shape;
  const auto& groups = scales.info->shape;
  return groups.size() >= 2 && codes.size() == groups.size() + 1 && codes.back() == kGroup / 2 &&
         std::ranges::equal(codes.first(groups.size()), groups);
}

void check_shapes(const SourceTensor& blocks, const SourceTensor& scales, bool is_split) {
  const Part parts[] = {part_of(blocks), part_of(scales)};
  if (!are_bytes(blocks, scales)) mismatch(parts, "blocks and scales must be U8");
  if (!are_groups(blocks, scales)) mismatch(parts, "blocks must have 16 bytes for each scale");
  const auto& groups = scales.info->shape;
  if (!checked_multiply(groups.back(), kGroup * 2)) mismatch(parts, "rows are too long");
  if (is_split && groups.end()[-2] % 2 != 0) mismatch(parts, "gate and up must have equal rows");
}

void claim_bias(const SourceTensor& blocks, const SourceTensor& bias, std::string_view experts,
                Checkpoint& checkpoint) {
  const auto& shape = bias.info->shape;
  const auto& rows = blocks.info->shape;
  const Dtype type = bias.info->dtype;
  if (type != Dtype::kBF16 && type != Dtype::kF16 && type != Dtype::kF32) return;
  if (!std::ranges::equal(shape, rows.first(rows.size() - 2))) {
    const Part parts[] = {part_of(blocks), part_of(bias)};
    mismatch(parts, "there must be one bias for each row");
  }
  const std::string module(experts);
  checkpoint.claim(blocks, module + "gate_proj.bias",
                   std::make_unique<HalfOfBias>(bias, Rows{2, 0}));
  checkpoint.claim(blocks, module + "up_proj.bias", std::make_unique<HalfOfBias>(bias, Rows{2, 1}));
}

}  // namespace

void claim_mxfp4(const SourceTensor& blocks, Checkpoint& checkpoint) {
  constexpr std::string_view kEnding = "_blocks";
  constexpr std::string_view kBoth = "gate_up_proj";
  const std::string_view name = blocks.info->name;
  const bool is_openai = part_of(blocks).role == "blocks";
  const std::string_view module =
      is_openai ? module_of(blocks) : name.substr(0, name.size() - kEnding.size());
  if (is_openai && module.empty()) return;
  const SourceTensor* scales = checkpoint.find(module, is_openai ? ".scales" : "_scales");
  if (scales == nullptr) return;
  // Tensors of other schemes may have the same names. Without a configuration, types and shapes
  // decide.
  const bool fits = are_bytes(blocks, *scales) && are_groups(blocks, *scales);
  if (!fits && checkpoint.quant().method.empty()) return;
  const bool is_split = !is_openai && module.ends_with(kBoth);
  check_shapes(blocks, *scales, is_split);
  if (!is_split) {
    checkpoint.claim(blocks, std::string(module) + (is_openai ? "" : ".weight"),
                     std::make_unique<Mxfp4Weight>(blocks, *scales, Rows{}));
    return;
  }
  const std::string_view experts = module.substr(0, module.size() - kBoth.size());
  checkpoint.claim(blocks, std::string(experts) + "gate_proj.weight",
                   std::make_unique<Mxfp4Weight>(blocks, *scales, Rows{2, 0}));
  checkpoint.claim(blocks, std::string(experts) + "up_proj.weight",
                   std::make_unique<Mxfp4Weight>(blocks, *scales, Rows{2, 1}));
  if (const SourceTensor* bias = checkpoint.find(module, "_bias")) {
    claim_bias(blocks, *bias, experts, checkpoint);
  }
}

}  // namespace safetensors::weights

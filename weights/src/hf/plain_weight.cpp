#include "hf/plain_weight.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "dequant/scale_type.hpp"
#include "model/effective_type.hpp"

namespace safetensors::weights {
namespace {

/// Returns whether get_tensor converts the tensor to F16. `wanted` is the option for its kind.
bool is_converted(const SourceTensor& tensor, bool wanted) noexcept {
  return wanted && (tensor.info->dtype == Dtype::kBF16 || tensor.info->dtype == Dtype::kF32);
}

/// Returns the size of a section with the tensor.
std::size_t section_size(const SourceTensor* tensor, bool to_f16) {
  if (tensor == nullptr) return 0;
  const bool halves = is_converted(*tensor, to_f16) && tensor->info->dtype == Dtype::kF32;
  return memory_size(halves ? tensor->info->nbytes() / 2 : tensor->info->nbytes());
}

void write_section(const SourceTensor& tensor, std::span<std::byte> to, bool to_f16,
                   const ModelOptions& options, const Interrupt& interrupt) {
  if (!is_converted(tensor, to_f16)) {
    tensor.read(to, interrupt);
    return;
  }
  const StoredBytes stored = tensor.bytes(interrupt);
  write_f16(tensor, stored.bytes, to, options, interrupt);
}

class PlainWeight final : public StoredWeight {
 public:
  PlainWeight(const SourceTensor& tensor, const std::string* refusal)
      : tensor_(tensor), refusal_(refusal) {}

  void fill(const ModelOptions& options, WeightInfo& info) const override {
    info.shape = signed_shape(tensor_);
    info.stored_bytes = tensor_.info->nbytes();
    const EffectiveType type =
        effective_type(is_halved(options) ? Dtype::kF16 : tensor_.info->dtype);
    info.code = type.code;
    info.type_name = type.name;
    info.is_decoded = refusal_ == nullptr;
  }

  std::vector<Part> parts() const override { return {part_of(tensor_)}; }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    const Dtype dtype = tensor_.info->dtype;
    check_values(info);
    if (!can_convert(dtype)) {
      fail(Errc::unsupported, tensor_.file->path(), info.source,
           "values of type " + info.type_name + " are not decoded");
    }
    const std::uint64_t columns = row_length(info.shape);
    const std::uint64_t bits = bit_size(dtype);
    const std::uint64_t first_bit = rows.begin * columns * bits;
    const std::uint64_t end_bit = rows.end * columns * bits;
    const StoredBytes stored = tensor_.bytes(first_bit / 8, (end_bit + 7) / 8, interrupt);
    const std::byte* from = stored.bytes.data();
    std::uint64_t count = (rows.end - rows.begin) * columns;
    if (first_bit % 8 != 0) {
      // Rows of an odd number of F4: the first value shares a byte with the row before.
      std::array<std::byte, 2 * sizeof(float)> pair{};
      convert_values(dtype, from++, 2, output, pair.data(), interrupt);
      to = std::copy_n(pair.data() + size_of(output), size_of(output), to);
      --count;
    }
    convert_values(dtype, from, count, output, to, interrupt);
  }

  bool fuses_with(const WeightInfo& info, const StoredWeight& other, const WeightInfo& next,
                  const ModelOptions& /*options*/) const override {
    const auto* const plain = dynamic_cast<const PlainWeight*>(&other);
    check_values(info);
    if (plain != nullptr) plain->check_values(next);
    return plain != nullptr && tensor_.info->dtype == plain->tensor_.info->dtype;
  }

  std::optional<StoredBytes> view(const ModelOptions& options,
                                  const Interrupt& interrupt) const override {
    if (is_halved(options)) return std::nullopt;
    return tensor_.bytes(interrupt);
  }

  void write(std::size_t /*section*/, std::span<std::byte> to, const ModelOptions& options,
             const Interrupt& interrupt) const override {
    write_section(tensor_, to, is_halved(options), options, interrupt);
  }

 private:
  /// Throws unsupported if these are codes of a scheme.
  void check_values(const WeightInfo& info) const {
    if (refusal_ != nullptr) fail(Errc::unsupported, tensor_.file->path(), info.source, *refusal_);
  }
  bool is_halved(const ModelOptions& options) const noexcept {
    return options.bf16_to_f16 && tensor_.info->dtype == Dtype::kBF16;
  }

  const SourceTensor& tensor_;
  const std::string* refusal_;
};

class PackWeight final : public StoredWeight {
 public:
  PackWeight(const Pack& pack, const std::string* remark)
      : pack_(pack.tensors), params_(pack.quant.params), remark_(remark) {}

  void fill(const ModelOptions& options, WeightInfo& info) const override {
    info.storage = Storage::mlx_pack;
    info.quant = params_;
    const bool halved = scales_to_f16(options);
    info.scales_code = effective_type(halved ? Dtype::kF16 : pack_.scales->info->dtype).code;
    for (const Part& part : parts()) info.stored_bytes += part.tensor->info->nbytes();
    info.shape = signed_shape(*pack_.words);
    const EffectiveType type =
        params_ ? effective_type(*params_) : effective_type(pack_.words->info->dtype);
    info.code = type.code;
    info.type_name = type.name;
    // No overflow: checked when the parameters were chosen.
    if (params_) info.shape.back() = signed_shape(*pack_.scales).back() * params_->group_size;
  }

  std::vector<Part> parts() const override {
    return parts_of({pack_.words, pack_.scales, third_part()});
  }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    check_params();
    const std::uint64_t all = row_count(info.shape);
    const StoredBytes words = read_rows(*pack_.words, all, rows, interrupt);
    const StoredBytes scales = read_rows(*pack_.scales, all, rows, interrupt);
    const StoredBytes biases =
        pack_.biases != nullptr ? read_rows(*pack_.biases, all, rows, interrupt) : StoredBytes{};
    const StoredBytes global =
        pack_.global_scale != nullptr ? pack_.global_scale->bytes(interrupt) : StoredBytes{};
    PackRows from;
    from.params = params_.value_or(QuantParams{});  // not empty: checked above
    from.scale_type = scale_type_of(pack_.scales->info->dtype);
    from.columns = row_length(info.shape);
    from.words = words.bytes.data();
    from.scales = scales.bytes.data();
    from.biases = biases.bytes.data();
    if (pack_.global_scale != nullptr) {
      // One global scale for the whole pack, or one for each matrix of a stack.
      from.global_scales = global.bytes.data();
      from.rows_per_global_scale = all / (global.bytes.size() / sizeof(float));
      from.first_row = rows.begin;
    }
    dequantize_pack(from, rows.end - rows.begin, output, to, interrupt);
  }

  bool fuses_with(const WeightInfo& /*info*/, const StoredWeight& other, const WeightInfo& /*next*/,
                  const ModelOptions& options) const override {
    const auto* const next = dynamic_cast<const PackWeight*>(&other);
    if (next == nullptr || params_ != next->params_) return false;
    if (pack_.words->info->dtype != next->pack_.words->info->dtype) return false;
    if ((pack_.global_scale == nullptr) != (next->pack_.global_scale == nullptr)) return false;
    return options.scales_to_f16 || pack_.scales->info->dtype == next->pack_.scales->info->dtype;
  }

  WeightBuffer::Sections sections(const ModelOptions& options) const override {
    check_params();
    const bool halved = scales_to_f16(options);
    return {section_size(pack_.words, false), section_size(pack_.scales, halved),
            section_size(third_part(), halved)};
  }

  void write(std::size_t section, std::span<std::byte> to, const ModelOptions& options,
             const Interrupt& interrupt) const override {
    const SourceTensor* part = section == 0   ? pack_.words
                               : section == 1 ? pack_.scales
                                              : third_part();
    write_section(*part, to, section != 0 && scales_to_f16(options), options, interrupt);
  }

 private:
  const SourceTensor* third_part() const noexcept {
    return pack_.biases != nullptr ? pack_.biases : pack_.global_scale;
  }
  /// Only affine packs have scales of more than one type.
  bool scales_to_f16(const ModelOptions& options) const noexcept {
    return options.scales_to_f16 && pack_.biases != nullptr;
  }
  void check_params() const {
    if (params_) return;
    fail(Errc::quant_mismatch, pack_.words->file->path(), pack_.words->info->name,
         remark_ != nullptr
             ? *remark_ + ": " + described(pack_)
             : "a pack whose mode, bits and group size are not known: state them in the options");
  }

  PackTensors pack_;
  std::optional<QuantParams> params_;
  const std::string* remark_;
};

}  // namespace

std::unique_ptr<StoredWeight> plain_weight(const SourceTensor& tensor, const std::string* refusal) {
  return std::make_unique<PlainWeight>(tensor, refusal);
}

std::unique_ptr<StoredWeight> pack_weight(const Pack& pack, const std::string* remark) {
  return std::make_unique<PackWeight>(pack, remark);
}

}  // namespace safetensors::weights

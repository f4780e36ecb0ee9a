#include "weights/safetensors_backend.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "weights/effective_type.hpp"
#include "weights/fail.hpp"
#include "weights/hf_files.hpp"
#include "weights/names.hpp"
#include "weights/packs.hpp"
#include "weights/quant_params.hpp"
#include "weights/remarks.hpp"
#include "weights/schemes.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

/// MLX's files state a quantization, or name the format in their metadata.
bool is_mlx(const SafeOpen& first, const HfConfig& config) {
  if (config.model.quantization) return true;
  for (const auto& [key, value] : first.metadata()) {
    if (key == "format") return value == "mlx";
  }
  return false;
}

/// Returns the type of a pack's scales, which are F16 unless they have one of these types.
ScaleType scale_type(Dtype dtype) noexcept {
  if (dtype == Dtype::kBF16) return ScaleType::bf16;
  if (dtype == Dtype::kF32) return ScaleType::f32;
  if (dtype == Dtype::kU8) return ScaleType::u8;
  return ScaleType::f16;
}

std::vector<std::int64_t> signed_shape(const SourceTensor& tensor) {
  std::vector<std::int64_t> shape;
  for (const std::uint64_t size : tensor.info->shape) {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(Errc::overflow, tensor.file->path(), tensor.info->name,
           "an axis of " + std::to_string(size) + " does not fit in 63 bits");
    }
    shape.push_back(static_cast<std::int64_t>(size));
  }
  return shape;
}

/// A scheme of transformers, and a mode of MLX. Models that were converted to MLX may keep the
/// scheme in config.json although their tensors are packs of the mode.
constexpr std::string_view kMxfp4 = "mxfp4";

class SafetensorsBackend final : public Backend {
 public:
  SafetensorsBackend(const fs::path& path, const ModelOptions& options, ShardSet shards,
                     HfConfig config);

  const Model& model() const noexcept override { return model_; }
  WeightBuffer::Sections sections(std::size_t tensor) const override;
  StoredBytes stored(std::size_t tensor, const Interrupt& interrupt) const override {
    return packs_[tensor].words->bytes(interrupt);
  }
  std::optional<StoredBytes> view(std::size_t tensor, const Interrupt& interrupt) const override;
  void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
             const Interrupt& interrupt) const override;
  void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                  const Interrupt& interrupt) const override;
  bool same_kind(std::size_t a, std::size_t b) const override;

 private:
  void collect(const HfConfig& config);
  [[nodiscard]] std::vector<Pack> take_packs(std::vector<Mapped>& mapped,
                                             const HfConfig& config) const;
  [[nodiscard]] WeightInfo info_of(const SourceTensor& tensor, Mapped& mapped) const;
  [[nodiscard]] std::string_view scheme_name(const SourceTensor& tensor) const;
  void finish_config(const HfConfig& config);
  void check_quant(std::size_t tensor) const;
  [[nodiscard]] bool is_converted(const SourceTensor& tensor, bool wanted) const noexcept;
  void write_converted(const SourceTensor& tensor, std::span<std::byte> to, bool to_f16,
                       const Interrupt& interrupt) const;

  ModelOptions options_;
  Model model_;
  SourceTensors sources_;
  std::vector<PackTensors> packs_;              ///< by tensor
  std::map<std::size_t, std::string> remarks_;  ///< of packs without parameters, by tensor
};

SafetensorsBackend::SafetensorsBackend(const fs::path& path, const ModelOptions& options,
                                       ShardSet shards, HfConfig config)
    : options_(options), sources_(shards, options, model_.warnings) {
  model_.path = path;
  model_.files = std::move(shards.files);
  shards = {};  // frees the index, which may be large
  model_.metadata = ModelMetadata::of_strings(sources_.first_file().metadata());
  model_.format =
      is_mlx(sources_.first_file(), config) ? Format::mlx_safetensors : Format::hf_safetensors;
  if (model_.format == Format::mlx_safetensors && config.model.quantization_method == kMxfp4) {
    config.model.quantization_method.reset();
    config.model.quantization = defaults_of(QuantMode::mxfp4);
  }
  model_.config = std::move(config.model);
  config.model = model_.config;
  collect(config);
  finish_config(config);
}

/// Returns the scheme of a tensor that is not a pack; empty if there is none.
std::string_view SafetensorsBackend::scheme_name(const SourceTensor& tensor) const {
  const auto& method = model_.config.quantization_method;
  if (method && !is_plain_float(tensor.info->dtype)) return *method;
  return scheme_of(sources_, tensor);
}

/// Describes a tensor as a plain one.
WeightInfo SafetensorsBackend::info_of(const SourceTensor& tensor, Mapped& mapped) const {
  WeightInfo info;
  info.source = tensor.info->name;
  info.name = mapped.kind == Mapped::Kind::canonical ? std::move(mapped.name) : info.source;
  info.shape = signed_shape(tensor);
  info.stored_bytes = tensor.info->nbytes();
  const bool halved = options_.bf16_to_f16 && tensor.info->dtype == Dtype::kBF16;
  const EffectiveType type = effective_type(halved ? Dtype::kF16 : tensor.info->dtype);
  info.code = type.code;
  info.type_name = type.name;
  return info;
}

/// Turns the description of the words into that of the pack.
void describe_pack(WeightInfo& info, const Pack& pack, bool scales_to_f16) {
  const PackTensors& tensors = pack.tensors;
  info.storage = Storage::mlx_pack;
  info.quant = pack.quant.params;
  const bool halved = scales_to_f16 && tensors.biases != nullptr;
  info.scales_code = effective_type(halved ? Dtype::kF16 : tensors.scales->info->dtype).code;
  for (const SourceTensor* part : {tensors.scales, tensors.biases, tensors.global_scale}) {
    if (part != nullptr) info.stored_bytes += part->info->nbytes();
  }
  if (!info.quant) return;
  const EffectiveType type = effective_type(*info.quant);
  info.code = type.code;
  info.type_name = type.name;
  // No overflow: checked when the parameters were chosen.
  info.shape.back() = signed_shape(*tensors.scales).back() * info.quant->group_size;
}

/// Finds the packs, in the order of their words. Updates `mapped`: scales and biases of packs are
/// ignored, and such parts without a weight have no canonical name.
std::vector<Pack> SafetensorsBackend::take_packs(std::vector<Mapped>& mapped,
                                                 const HfConfig& config) const {
  const std::span<const SourceTensor> all = sources_.all();
  const RowLengths lengths(all, mapped, config.model);
  std::vector<Pack> packs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (mapped[i].kind == Mapped::Kind::ignored) continue;
    auto pack = find_pack(sources_, all[i], mapped[i].name, config, lengths, options_.quant);
    if (pack) packs.push_back(std::move(*pack));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string_view param = split_param(all[i].info->name).param;
    const bool is_part = !param.empty() && param != "weight" && param != "bias";
    if (is_part && mapped[i].kind == Mapped::Kind::canonical) mapped[i] = {};
  }
  for (const Pack& pack : packs) {
    for (const SourceTensor* part :
         {pack.tensors.scales, pack.tensors.biases, pack.tensors.global_scale}) {
      if (part != nullptr)
        mapped[static_cast<std::size_t>(part - all.data())] = {Mapped::Kind::ignored, {}};
    }
  }
  return packs;
}

void SafetensorsBackend::collect(const HfConfig& config) {
  const std::span<const SourceTensor> all = sources_.all();
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const SourceTensor& tensor : all) names.push_back(tensor.info->name);
  std::vector<Mapped> mapped = map_hf_names(names);
  const std::vector<Pack> packs = take_packs(mapped, config);

  model_.reserve(mapped);
  packs_.reserve(model_.tensors.capacity() + model_.others.capacity());
  Remarks remarks;
  for (const std::uint32_t i : order_of(names, mapped)) {
    const bool is_mapped = mapped[i].kind == Mapped::Kind::canonical;
    WeightInfo info = info_of(all[i], mapped[i]);
    const auto pack =
        std::ranges::lower_bound(packs, &all[i], {}, [](const Pack& p) { return p.tensors.words; });
    const bool is_pack = pack != packs.end() && pack->tensors.words == &all[i];
    if (is_pack) {
      describe_pack(info, *pack, options_.scales_to_f16);
      if (!info.quant && !pack->quant.remark.empty()) remarks_[packs_.size()] = pack->quant.remark;
    } else {
      info.is_decoded = scheme_name(all[i]).empty();
    }
    remarks.note(info, is_pack ? pack->quant.remark : std::string());
    packs_.push_back(is_pack ? pack->tensors : PackTensors{.words = &all[i]});
    model_.add(std::move(info), is_mapped);
  }
  remarks.say(model_.warnings);
}

void SafetensorsBackend::finish_config(const HfConfig& config) {
  const auto has = [&](std::string_view name) {
    return std::ranges::binary_search(
        model_.tensors, name, name_less,
        [](const WeightInfo& info) -> std::string_view { return info.name; });
  };
  if (!config.says_tied) model_.config.tie_word_embeddings = !has("output.weight");
  finish_model(model_);
}

void SafetensorsBackend::check_quant(std::size_t tensor) const {
  const WeightInfo& info = model_.tensor(tensor);
  if (info.storage != Storage::mlx_pack || info.quant) return;
  const auto remark = remarks_.find(tensor);
  fail(Errc::quant_mismatch, packs_[tensor].words->file->path(), info.source,
       remark != remarks_.end()
           ? remark->second + ": " + described(packs_[tensor])
           : "a pack whose mode, bits and group size are not known: state them in the options");
}

/// Returns whether the tensor is converted to F16. `wanted` is the option for its kind.
bool SafetensorsBackend::is_converted(const SourceTensor& tensor, bool wanted) const noexcept {
  return wanted && (tensor.info->dtype == Dtype::kBF16 || tensor.info->dtype == Dtype::kF32);
}

WeightBuffer::Sections SafetensorsBackend::sections(std::size_t tensor) const {
  check_quant(tensor);
  const PackTensors& pack = packs_[tensor];
  const auto size = [&](const SourceTensor* part, bool to_f16) -> std::size_t {
    if (part == nullptr) return 0;
    const std::uint64_t stored = part->info->nbytes();
    const bool halves = is_converted(*part, to_f16) && part->info->dtype == Dtype::kF32;
    return static_cast<std::size_t>(halves ? stored / 2 : stored);
  };
  if (pack.scales == nullptr) return {size(pack.words, false), 0, 0};
  if (pack.biases == nullptr) {
    return {size(pack.words, false), size(pack.scales, false), size(pack.global_scale, false)};
  }
  return {size(pack.words, false), size(pack.scales, options_.scales_to_f16),
          size(pack.biases, options_.scales_to_f16)};
}

std::optional<StoredBytes> SafetensorsBackend::view(std::size_t tensor,
                                                    const Interrupt& interrupt) const {
  const PackTensors& pack = packs_[tensor];
  if (pack.scales != nullptr) return std::nullopt;
  if (options_.bf16_to_f16 && pack.words->info->dtype == Dtype::kBF16) return std::nullopt;
  return pack.words->bytes(interrupt);
}

void SafetensorsBackend::write_converted(const SourceTensor& tensor, std::span<std::byte> to,
                                         bool to_f16, const Interrupt& interrupt) const {
  if (!is_converted(tensor, to_f16)) {
    tensor.read(to, interrupt);
    return;
  }
  const StoredBytes stored = tensor.bytes(interrupt);
  const std::uint64_t count = to.size() / 2;
  const std::uint64_t overflows =
      to_f16_values(tensor.info->dtype, stored.bytes.data(), count, to.data(), interrupt);
  if (overflows != 0 && !options_.allow_f16_overflow) {
    fail(Errc::f16_overflow, tensor.file->path(), tensor.info->name,
         grouped(overflows) + " of " + grouped(count) + " values are too large for F16");
  }
}

void SafetensorsBackend::write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
                               const Interrupt& interrupt) const {
  const PackTensors& pack = packs_[tensor];
  if (pack.scales == nullptr) {
    write_converted(*pack.words, to,
                    options_.bf16_to_f16 && pack.words->info->dtype == Dtype::kBF16, interrupt);
    return;
  }
  const SourceTensor* third = pack.biases != nullptr ? pack.biases : pack.global_scale;
  const SourceTensor* part = section == 0 ? pack.words : section == 1 ? pack.scales : third;
  const bool to_f16 = section != 0 && pack.biases != nullptr && options_.scales_to_f16;
  write_converted(*part, to, to_f16, interrupt);
}

void SafetensorsBackend::dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                                    const Interrupt& interrupt) const {
  check_quant(tensor);
  const WeightInfo& info = model_.tensor(tensor);
  const PackTensors& pack = packs_[tensor];
  const SourceTensor& words = *pack.words;
  const std::uint64_t all = row_count(info.shape);
  // Reads the rows of a part, all of which have the same length.
  const auto part = [&](const SourceTensor& source) {
    const std::uint64_t row = source.info->nbytes() / all;
    return source.bytes(rows.begin * row, rows.end * row, interrupt);
  };
  if (pack.scales == nullptr) {
    const Dtype dtype = words.info->dtype;
    if (!info.is_decoded) {
      fail(Errc::unsupported, words.file->path(), info.source,
           "weights quantised by " + clipped(scheme_name(words)) + " are not decoded");
    }
    if (!can_convert(dtype)) {
      fail(Errc::unsupported, words.file->path(), info.source,
           "values of type " + info.type_name + " are not decoded");
    }
    const StoredBytes stored = part(words);
    convert_values(dtype, stored.bytes.data(), (rows.end - rows.begin) * row_length(info.shape),
                   output, to, interrupt);
    return;
  }
  const StoredBytes stored_words = part(words);
  const StoredBytes scales = part(*pack.scales);
  const StoredBytes biases = pack.biases != nullptr ? part(*pack.biases) : StoredBytes{};
  const StoredBytes global =
      pack.global_scale != nullptr ? pack.global_scale->bytes(interrupt) : StoredBytes{};
  PackRows pack_rows;
  pack_rows.params = info.quant.value_or(QuantParams{});  // not empty: checked above
  pack_rows.scale_type = scale_type(pack.scales->info->dtype);
  pack_rows.columns = row_length(info.shape);
  pack_rows.words = stored_words.bytes.data();
  pack_rows.scales = scales.bytes.data();
  pack_rows.biases = biases.bytes.data();
  if (pack.global_scale != nullptr) {
    // One global scale for the whole pack, or one for each matrix of a stack.
    pack_rows.global_scales = global.bytes.data();
    pack_rows.rows_per_global_scale = all / (global.bytes.size() / sizeof(float));
    pack_rows.first_row = rows.begin;
  }
  dequantize_pack(pack_rows, rows.end - rows.begin, output, to, interrupt);
}

bool SafetensorsBackend::same_kind(std::size_t a, std::size_t b) const {
  const WeightInfo& x = model_.tensor(a);
  const WeightInfo& y = model_.tensor(b);
  if (x.storage != y.storage || x.code != y.code || x.quant != y.quant) return false;
  const PackTensors& p = packs_[a];
  const PackTensors& q = packs_[b];
  if (p.words->info->dtype != q.words->info->dtype) return false;
  if ((p.global_scale == nullptr) != (q.global_scale == nullptr)) return false;
  return p.scales == nullptr || options_.scales_to_f16 ||
         p.scales->info->dtype == q.scales->info->dtype;
}

}  // namespace

std::unique_ptr<Backend> open_safetensors(const fs::path& path, const ModelOptions& options) {
  HfFiles files = find_hf_files(path, options.limits);
  HfConfig config = read_hf_config(files, options.limits);
  return std::make_unique<SafetensorsBackend>(path, options, std::move(files.shards),
                                              std::move(config));
}

Format safetensors_format(const fs::path& path) {
  const Limits limits;
  const HfFiles files = find_hf_files(path, limits);
  const HfConfig config = read_hf_config(files, limits);
  return with_error_context(files.shards.files.front(), {}, [&] {
    const SafeOpen first(files.shards.files.front());
    return is_mlx(first, config) ? Format::mlx_safetensors : Format::hf_safetensors;
  });
}

}  // namespace safetensors::weights

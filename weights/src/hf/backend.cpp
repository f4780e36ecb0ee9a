#include "hf/backend.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "hf/files.hpp"
#include "hf/packs.hpp"
#include "hf/plain_weight.hpp"
#include "hf/quant_params.hpp"
#include "model/effective_type.hpp"
#include "names/names.hpp"
#include "names/remarks.hpp"
#include "safetensors/model_files.hpp"
#include "schemes/checkpoint.hpp"
#include "schemes/quant_config.hpp"
#include "schemes/refused.hpp"
#include "tensors/stored_weight.hpp"

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

/// A scheme of transformers, and a mode of MLX. Models that were converted to MLX may keep the
/// scheme in config.json although their tensors are packs of the mode.
constexpr std::string_view kMxfp4 = "mxfp4";

/// Returns whether the path is one file of several, which the configuration is not about alone.
bool is_part_of_model(const fs::path& path) {
  const std::string name = display_path(path.filename());
  const ModelFileName::Kind kind = parse_model_file_name(name).kind;
  return kind == ModelFileName::Kind::kShard || kind == ModelFileName::Kind::kPart;
}

/// Returns the number of the first layer that checkpoints may lack: of those that predict further
/// tokens, which come after the model's. Nothing if it has none.
std::optional<std::int64_t> first_further_layer(const ModelConfig& model) {
  constexpr std::string_view kKey = "num_nextn_predict_layers";
  if (model.raw == nullptr) return std::nullopt;
  const Json* text = model.raw->find("text_config");
  const bool has_some =
      model.raw->find(kKey) != nullptr || (text != nullptr && text->find(kKey) != nullptr);
  return has_some ? model.n_layers : std::nullopt;
}

class SafetensorsBackend final : public Backend {
 public:
  SafetensorsBackend(const Files& files, const fs::path& path, const ModelOptions& options,
                     FoundModel shards, HfConfig config);

  const Model& model() const noexcept override { return model_; }
  WeightBuffer::Sections sections(std::size_t tensor) const override {
    return weights_[tensor]->sections(options_);
  }
  StoredBytes stored(std::size_t tensor, std::size_t part,
                     const Interrupt& interrupt) const override {
    return weights_[tensor]->parts()[part].tensor->bytes(interrupt);
  }
  std::optional<StoredBytes> stored_part(std::string_view source,
                                         const Interrupt& interrupt) const override {
    const SourceTensor* tensor = sources_.find(source);
    if (tensor == nullptr) return std::nullopt;
    return tensor->bytes(interrupt);
  }
  std::vector<WeightPart> parts(std::size_t tensor) const override;
  std::size_t part_count(std::size_t tensor) const override {
    return weights_[tensor]->parts().size();
  }
  std::optional<StoredBytes> view(std::size_t tensor, const Interrupt& interrupt) const override {
    return weights_[tensor]->view(options_, interrupt);
  }
  void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
             const Interrupt& interrupt) const override {
    weights_[tensor]->write(section, to, options_, interrupt);
  }
  void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                  const Interrupt& interrupt) const override {
    weights_[tensor]->decode(model_.tensor(tensor), rows, output, to, interrupt);
  }
  bool same_kind(std::size_t a, std::size_t b) const override {
    return weights_[a]->fuses_with(model_.tensor(a), *weights_[b], model_.tensor(b), options_);
  }

 private:
  void collect(const HfConfig& config, const QuantConfig& quant);
  [[nodiscard]] std::vector<Pack> take_packs(std::span<Mapped> mapped, const HfConfig& config,
                                             const Checkpoint& checkpoint,
                                             std::vector<std::string>& warnings) const;
  [[nodiscard]] std::string_view keep_name(std::string name, const StoredWeight& weight);
  void finish_config(const HfConfig& config);

  ModelOptions options_;
  Model model_;
  SourceTensors sources_;
  std::vector<std::unique_ptr<StoredWeight>> weights_;  ///< by tensor
  std::deque<std::string> names_;                       ///< of keep_name()
  // Why weights are not decoded; they point to these texts.
  std::set<std::string> remarks_;   // of packs
  std::set<std::string> refusals_;  // of the others
};

SafetensorsBackend::SafetensorsBackend(const Files& files, const fs::path& path,
                                       const ModelOptions& options, FoundModel shards,
                                       HfConfig config)
    : options_(options), sources_(files, shards, options, model_.warnings) {
  model_.path = path;
  std::ranges::move(shards.remarks, std::back_inserter(model_.warnings));
  for (std::size_t i = 0; i < shards.files.size(); ++i) model_.files.push_back(shards.path(i));
  const fs::path folder = std::move(shards.folder);
  shards = {};  // frees the index, which may be large
  model_.metadata = ModelMetadata::of_strings(sources_.first_file().metadata());
  model_.format =
      is_mlx(sources_.first_file(), config) ? Format::mlx_safetensors : Format::hf_safetensors;
  if (model_.format == Format::mlx_safetensors && config.model.quantization_method == kMxfp4) {
    config.model.quantization_method.reset();
    config.model.quantization = defaults_of(QuantMode::mxfp4);
  }
  const bool has_qweight = std::ranges::any_of(sources_.all(), [](const SourceTensor& tensor) {
    return tensor.info->name.ends_with(".qweight");
  });
  const QuantConfig quant =
      read_quant_config(config.model.raw.get(), files, folder, has_qweight, options.limits);
  model_.config = std::move(config.model);
  config.model = model_.config;
  collect(config, quant);
  finish_config(config);
}

/// Finds the packs, in the order of their words. Updates `mapped`: scales and biases of packs are
/// ignored, and such parts without a weight have no canonical name.
std::vector<Pack> SafetensorsBackend::take_packs(std::span<Mapped> mapped, const HfConfig& config,
                                                 const Checkpoint& checkpoint,
                                                 std::vector<std::string>& warnings) const {
  const std::span<const SourceTensor> all = sources_.all();
  const RowLengths lengths(all, mapped, config.model);
  ModuleEntries entries(config, all);
  std::vector<Pack> packs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (mapped[i].kind == Mapped::Kind::ignored || checkpoint.refuses(all[i])) continue;
    auto pack =
        find_pack(sources_, all[i], mapped[i].name, config, entries, lengths, options_.quant);
    if (pack) packs.push_back(std::move(*pack));
  }
  if (!is_part_of_model(model_.path)) entries.say_unused(warnings);
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

void SafetensorsBackend::collect(const HfConfig& config, const QuantConfig& quant) {
  const std::span<const SourceTensor> all = sources_.all();
  Checkpoint checkpoint(sources_, quant);
  if (!quant.rules.empty() && !is_part_of_model(model_.path)) {
    std::vector<std::string_view> stored;
    for (const SourceTensor& tensor : all) stored.push_back(tensor.info->name);
    say_unmatched(quant.rules, stored, first_further_layer(model_.config), model_.warnings);
  }
  // The tensors, then the weights of schemes. The parts of these weights have no names.
  std::vector<std::string_view> names;
  names.reserve(all.size() + checkpoint.claims().size());
  for (const SourceTensor& tensor : all) {
    names.push_back(checkpoint.is_claimed(tensor) ? std::string_view() : tensor.info->name);
  }
  for (const Claim& claim : checkpoint.claims()) names.push_back(claim.name);
  std::vector<Mapped> mapped = map_hf_names(names);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (checkpoint.is_claimed(all[i])) mapped[i] = {Mapped::Kind::ignored, {}};
  }
  const std::vector<Pack> packs =
      take_packs(std::span(mapped).first(all.size()), config, checkpoint, model_.warnings);

  model_.reserve(mapped);
  weights_.reserve(model_.tensors.capacity() + model_.others.capacity());
  Remarks& remarks = checkpoint.remarks();
  bool is_quantised = false;
  for (const std::uint32_t i : order_of(names, mapped)) {
    const bool is_mapped = mapped[i].kind == Mapped::Kind::canonical;
    WeightInfo info;
    std::string remark;
    if (i < all.size()) {
      info.source = all[i].info->name;
      const auto pack = std::ranges::lower_bound(packs, &all[i], {},
                                                 [](const Pack& p) { return p.tensors.words; });
      if (pack != packs.end() && pack->tensors.words == &all[i]) {
        remark = pack->quant.remark;
        const bool is_known = pack->quant.params || remark.empty();
        weights_.push_back(
            pack_weight(*pack, is_known ? nullptr : &*remarks_.insert(remark).first));
      } else {
        weights_.push_back(plain_weight(all[i], checkpoint.refusal_of(all[i])));
      }
      if (!is_mapped && checkpoint.is_extra(all[i])) model_.extras.emplace_back(info.source);
    } else {
      Claim& claim = checkpoint.claims()[i - all.size()];
      weights_.push_back(std::move(claim.weight));
      info.source = keep_name(std::move(claim.name), *weights_.back());
    }
    info.name = is_mapped ? std::move(mapped[i].name) : std::string(info.source);
    weights_.back()->fill(options_, info);
    if (info.storage == Storage::scheme) check_method(quant, info);
    is_quantised |= info.storage != Storage::raw || !info.is_decoded;
    remarks.note(info, remark);
    model_.add(std::move(info), is_mapped);
  }
  if (!is_decoded_config(quant)) model_.undecoded_method = quant.method;
  if (!quant.method.empty() && !is_quantised) {
    model_.warnings.push_back("quant_method is `" + clipped(quant.method) +
                              "`, but no tensor is quantised");
  }
  refusals_ = std::move(checkpoint.refusals());
  remarks.say(model_.warnings);
}

/// Returns the name of a scheme's weight as a view. Most names are the beginning of a part's, as
/// "M.weight" is of "M.weight_packed", and take no memory.
std::string_view SafetensorsBackend::keep_name(std::string name, const StoredWeight& weight) {
  const std::string_view part = weight.parts().front().tensor->info->name;
  if (part.starts_with(name)) return part.substr(0, name.size());
  return names_.emplace_back(std::move(name));
}

std::vector<WeightPart> SafetensorsBackend::parts(std::size_t tensor) const {
  std::vector<WeightPart> parts;
  for (const Part& part : weights_[tensor]->parts()) {
    const safetensors::TensorInfo& info = *part.tensor->info;
    const EffectiveType type = effective_type(info.dtype);
    parts.push_back({std::string(part.role), std::string(info.name), type.code,
                     std::string(type.name), signed_shape(*part.tensor), info.nbytes()});
  }
  return parts;
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

}  // namespace

std::unique_ptr<Backend> open_safetensors(const Files& files, const fs::path& path,
                                          const ModelOptions& options) {
  HfFiles found = find_hf_files(files, path, options.choice);
  HfConfig config = read_hf_config(files, found, options.limits);
  return std::make_unique<SafetensorsBackend>(files, path, options, std::move(found.shards),
                                              std::move(config));
}

Format safetensors_format(const fs::path& path, const ModelChoice& choice) {
  const Files files;
  const HfFiles found = find_hf_files(files, path, choice);
  const HfConfig config = read_hf_config(files, found, Limits{});
  const fs::path path_of_first = found.shards.path(0);
  return with_error_context(path_of_first, {}, [&] {
    const SafeOpen first = files.open_safetensors(path_of_first, true);
    return is_mlx(first, config) ? Format::mlx_safetensors : Format::hf_safetensors;
  });
}

}  // namespace safetensors::weights

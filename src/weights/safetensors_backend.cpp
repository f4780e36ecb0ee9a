#include "weights/safetensors_backend.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "weights/effective_type.hpp"
#include "weights/fail.hpp"
#include "weights/names.hpp"
#include "weights/packs.hpp"
#include "weights/quant_params.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

/// Where a model's files and tables are.
struct Place {
  ShardSet shards;
  fs::path config;      ///< empty without one
  fs::path generation;  ///< the same
};

fs::path if_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? path : fs::path();
}

Place find_place(const fs::path& path, const Limits& limits) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(path, ignored);
  const fs::path folder = is_directory ? path : path.parent_path();
  Place place;
  place.shards = is_directory ? find_shards(path, limits) : ShardSet{{path}, {}, {}};
  place.config = if_file(folder / "config.json");
  place.generation = if_file(folder / "generation_config.json");
  return place;
}

HfConfig read_config(const Place& place, const Limits& limits) {
  if (place.config.empty()) return {};
  const Json config = read_json(place.config, Duplicates::last_counts, limits);
  if (place.generation.empty()) return read_hf_config(config, nullptr, place.config);
  const Json generation = read_json(place.generation, Duplicates::last_counts, limits);
  return read_hf_config(config, &generation, place.config);
}

bool is_mlx(const SafeOpen& first, const HfConfig& config) {
  if (config.model.quantization && !config.model.quantization_method) return true;
  for (const auto& [key, value] : first.metadata()) {
    if (key == "format") return value == "mlx";
  }
  return false;
}

bool is_float(Dtype dtype) noexcept {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

ScaleType scale_type(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kBF16:
      return ScaleType::bf16;
    case Dtype::kF32:
      return ScaleType::f32;
    case Dtype::kU8:
      return ScaleType::u8;
    default:
      return ScaleType::f16;
  }
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

/// A tensor of the model and where it is.
struct Item {
  TensorInfo info;
  PackTensors pack;        ///< of a raw tensor `words` alone is set
  bool is_mapped = false;  ///< has a canonical name
};

class SafetensorsBackend final : public Backend {
 public:
  SafetensorsBackend(const fs::path& path, const OpenOptions& options, const Place& place,
                     HfConfig config);

  const Model& model() const noexcept override { return model_; }
  Buffer::Sections sections(std::size_t tensor) const override;
  std::optional<StoredBytes> view(std::size_t tensor, const Interrupt& interrupt) const override;
  void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
             const Interrupt& interrupt) const override;
  void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                  const Interrupt& interrupt) const override;
  bool same_kind(std::size_t a, std::size_t b) const override;

 private:
  void collect(const HfConfig& config);
  [[nodiscard]] Item item_of(const SourceTensor& tensor, const Mapped& mapped,
                             const HfConfig& config) const;
  void finish_config(const HfConfig& config);
  void check_quant(std::size_t tensor) const;
  [[nodiscard]] bool is_converted(const SourceTensor& tensor, bool wanted) const noexcept;
  void write_converted(const SourceTensor& tensor, std::span<std::byte> to, bool to_f16,
                       const Interrupt& interrupt) const;

  OpenOptions options_;
  Model model_;
  SourceTensors sources_;
  std::vector<PackTensors> packs_;  ///< by tensor
};

SafetensorsBackend::SafetensorsBackend(const fs::path& path, const OpenOptions& options,
                                       const Place& place, HfConfig config)
    : options_(options), sources_(place.shards, options, model_.warnings) {
  model_.path = path;
  model_.files = place.shards.files;
  model_.metadata = Metadata::of_strings(sources_.first_file().metadata());
  model_.format =
      is_mlx(sources_.first_file(), config) ? Format::mlx_safetensors : Format::hf_safetensors;
  model_.config = std::move(config.model);
  config.model = model_.config;
  collect(config);
  finish_config(config);
}

Item SafetensorsBackend::item_of(const SourceTensor& tensor, const Mapped& mapped,
                                 const HfConfig& config) const {
  Item item;
  item.is_mapped = mapped.kind == Mapped::Kind::canonical;
  TensorInfo& info = item.info;
  info.source = tensor.info->name;
  info.name = item.is_mapped ? mapped.name : info.source;
  info.shape = signed_shape(tensor);
  info.stored_bytes = tensor.info->nbytes();
  EffectiveType type = effective_type(tensor.info->dtype);
  item.pack.words = &tensor;
  if (auto pack = find_pack(sources_, tensor, item.is_mapped ? info.name : std::string_view(),
                            config, options_.quant)) {
    item.pack = *pack;
    info.storage = Storage::mlx_pack;
    info.quant = pack->quant;
    const bool halved = options_.scales_to_f16 && pack->biases != nullptr;
    info.scales_code = effective_type(halved ? Dtype::kF16 : pack->scales->info->dtype).code;
    for (const SourceTensor* part : {pack->scales, pack->biases, pack->global_scale}) {
      if (part != nullptr) info.stored_bytes += part->info->nbytes();
    }
    if (pack->quant) {
      type = effective_type(*pack->quant);
      // Fits: checked with the parameters, against the number of groups.
      info.shape.back() = signed_shape(*pack->scales).back() * pack->quant->group_size;
    }
  } else if (options_.bf16_to_f16 && tensor.info->dtype == Dtype::kBF16) {
    type = effective_type(Dtype::kF16);
  }
  info.code = type.code;
  info.type_name = type.name;
  return item;
}

void SafetensorsBackend::collect(const HfConfig& config) {
  std::vector<std::string_view> names;
  for (const SourceTensor& tensor : sources_.all()) names.push_back(tensor.info->name);
  const std::vector<Mapped> mapped = map_hf_names(names);

  std::vector<Item> items;
  std::vector<const SourceTensor*> parts;  // of packs: no tensors by themselves
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (mapped[i].kind == Mapped::Kind::ignored) continue;
    items.push_back(item_of(sources_.all()[i], mapped[i], config));
    const PackTensors& pack = items.back().pack;
    for (const SourceTensor* part : {pack.scales, pack.biases, pack.global_scale}) {
      if (part != nullptr) parts.push_back(part);
    }
  }
  std::sort(parts.begin(), parts.end());
  std::erase_if(items, [&](const Item& item) {
    return std::binary_search(parts.begin(), parts.end(), item.pack.words);
  });
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return comes_before(a.info, a.is_mapped, b.info, b.is_mapped);
  });
  std::size_t unknown = 0;
  for (Item& item : items) {
    unknown += item.info.storage == Storage::mlx_pack && !item.info.quant ? 1 : 0;
    model_.add(std::move(item.info), item.is_mapped);
    packs_.push_back(item.pack);
  }
  if (unknown != 0) {
    model_.warnings.push_back(grouped(unknown) +
                              " packed tensors have no parameters: no configuration says them");
  }
}

void SafetensorsBackend::finish_config(const HfConfig& config) {
  const auto has = [&](std::string_view name) {
    return std::ranges::binary_search(
        model_.tensors, name, name_less,
        [](const TensorInfo& info) -> std::string_view { return info.name; });
  };
  if (!config.says_tied) model_.config.tie_word_embeddings = !has("output.weight");
  check_layers(model_);
}

void SafetensorsBackend::check_quant(std::size_t tensor) const {
  const TensorInfo& info = model_.tensor(tensor);
  if (info.storage == Storage::mlx_pack && !info.quant) {
    fail(Errc::quant_mismatch, packs_[tensor].words->file->path(), info.source,
         "a pack whose mode, bits and group size are not known: say them in the options");
  }
}

/// Whether it becomes F16 when that is wanted.
bool SafetensorsBackend::is_converted(const SourceTensor& tensor, bool wanted) const noexcept {
  return wanted && (tensor.info->dtype == Dtype::kBF16 || tensor.info->dtype == Dtype::kF32);
}

Buffer::Sections SafetensorsBackend::sections(std::size_t tensor) const {
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
  const TensorInfo& info = model_.tensor(tensor);
  const PackTensors& pack = packs_[tensor];
  const SourceTensor& words = *pack.words;
  const std::uint64_t all = row_count(info.shape);
  // Bytes of the rows: each row of a part has the same.
  const auto part = [&](const SourceTensor& source) {
    const std::uint64_t row = source.info->nbytes() / all;
    return source.bytes(rows.begin * row, rows.end * row, interrupt);
  };
  if (pack.scales == nullptr) {
    const Dtype dtype = words.info->dtype;
    const auto& method = model_.config.quantization_method;
    if (method && !is_float(dtype)) {
      fail(Errc::unsupported, words.file->path(), info.source,
           "weights quantised by " + clipped(*method) + " are not decoded");
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
  pack_rows.params = info.quant.value_or(QuantParams{});  // there are some: checked above
  pack_rows.scale_type = scale_type(pack.scales->info->dtype);
  pack_rows.columns = row_length(info.shape);
  pack_rows.words = stored_words.bytes.data();
  pack_rows.scales = scales.bytes.data();
  pack_rows.biases = biases.bytes.data();
  if (pack.global_scale != nullptr) {
    // One for all of it, or one for each matrix of a stack.
    pack_rows.global_scales = global.bytes.data();
    pack_rows.rows_per_global_scale = all / (global.bytes.size() / sizeof(float));
    pack_rows.first_row = rows.begin;
  }
  dequantize_pack(pack_rows, rows.end - rows.begin, output, to, interrupt);
}

bool SafetensorsBackend::same_kind(std::size_t a, std::size_t b) const {
  const TensorInfo& x = model_.tensor(a);
  const TensorInfo& y = model_.tensor(b);
  if (x.storage != y.storage || x.code != y.code || x.quant != y.quant) return false;
  const PackTensors& p = packs_[a];
  const PackTensors& q = packs_[b];
  if (p.words->info->dtype != q.words->info->dtype) return false;
  if ((p.global_scale == nullptr) != (q.global_scale == nullptr)) return false;
  return p.scales == nullptr || options_.scales_to_f16 ||
         p.scales->info->dtype == q.scales->info->dtype;
}

}  // namespace

std::unique_ptr<Backend> open_safetensors(const fs::path& path, const OpenOptions& options) {
  const Place place = find_place(path, options.limits);
  HfConfig config = read_config(place, options.limits);
  return std::make_unique<SafetensorsBackend>(path, options, place, std::move(config));
}

Format safetensors_format(const fs::path& path) {
  const Limits limits;
  const Place place = find_place(path, limits);
  const HfConfig config = read_config(place, limits);
  return with_errors_of(place.shards.files.front(), {}, [&] {
    const SafeOpen first(place.shards.files.front());
    return is_mlx(first, config) ? Format::mlx_safetensors : Format::hf_safetensors;
  });
}

}  // namespace safetensors::weights

#include "gguf/backend.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/ggml_types.hpp"
#include "gguf/config.hpp"
#include "gguf/layout.hpp"
#include "gguf/scales.hpp"
#include "gguf/set.hpp"
#include "gguf/shapes.hpp"
#include "names/names.hpp"
#include "names/remarks.hpp"
#include "safetensors/dtype.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

/// A tensor's source and type, its scale, and the change of its numbers to undo.
struct Stored {
  const GgufSource* source;
  const GgmlType* type;
  GgufScale scale;
  Undo undo;

  [[nodiscard]] bool is_block() const noexcept { return type->block_elements != 1; }
  /// Returns whether the buffer has F32 values that differ from the stored ones. Blocks are always
  /// as stored.
  [[nodiscard]] bool is_rebuilt() const noexcept {
    return undo.lower_by_one || (scale.source != nullptr && !is_block());
  }
};

class GgufBackend final : public Backend {
 public:
  GgufBackend(const Files& files, const fs::path& path, const ModelOptions& options);

  const Model& model() const noexcept override { return model_; }
  WeightBuffer::Sections sections(std::size_t tensor) const override;
  StoredBytes stored(std::size_t tensor, std::size_t part,
                     const Interrupt& interrupt) const override {
    const Stored& stored = stored_[tensor];
    return (part == 0 ? stored.source : stored.scale.source)->bytes(interrupt);
  }
  std::optional<StoredBytes> stored_part(std::string_view source,
                                         const Interrupt& interrupt) const override {
    const GgufSource* const found = set_.find(source);
    if (found == nullptr) return std::nullopt;
    return found->bytes(interrupt);
  }
  std::vector<WeightPart> parts(std::size_t tensor) const override;
  std::size_t part_count(std::size_t tensor) const override {
    return stored_[tensor].scale.source == nullptr ? 1 : 2;
  }
  std::optional<StoredBytes> view(std::size_t tensor, const Interrupt& interrupt) const override;
  void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
             const Interrupt& interrupt) const override;
  void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                  const Interrupt& interrupt) const override;
  bool same_kind(std::size_t a, std::size_t b) const override;

 private:
  void collect();
  void read_config();
  void undo_layout();
  [[nodiscard]] ChangeValues change_of(std::size_t tensor, const Interrupt& interrupt) const;
  [[nodiscard]] std::uint64_t unit_nbytes(std::size_t tensor) const noexcept;
  void gather(std::size_t tensor, RowRange units, std::byte* to, const Interrupt& interrupt) const;
  [[nodiscard]] StoredBytes gathered(std::size_t tensor, RowRange rows,
                                     const Interrupt& interrupt) const;

  Model model_;
  GgufSet set_;
  std::vector<Stored> stored_;  ///< by tensor
};

GgufOptions options_of(const ModelOptions& options) {
  return {options.mmap, options.allow_gaps, options.limits};
}

GgufBackend::GgufBackend(const Files& files, const fs::path& path, const ModelOptions& options)
    : set_(files, path, options_of(options)) {
  model_.format = Format::gguf;
  model_.path = path;
  for (const GgufFile& file : set_.files()) model_.files.push_back(file.path());
  model_.metadata = set_.metadata();
  const MetaValue* const kind = model_.metadata.find("general.type");
  if (kind != nullptr && kind->as_string() == "imatrix") {
    model_.warnings.emplace_back(
        "general.type is imatrix: the file has importance data for quantising a model, not the "
        "model's weights");
  }
  collect();
  read_config();
  if (options.layout == ModelOptions::hf) {
    check_layout_known(model_.config, path);
    undo_layout();
  }
  finish_model(model_);
}

/// Describes a tensor without its shape.
WeightInfo info_of(const GgufTensor& tensor, const GgmlType& type, Mapped& mapped) {
  WeightInfo info;
  info.source = tensor.name;
  info.name =
      mapped.kind == Mapped::Kind::canonical ? std::move(mapped.name) : std::string(info.source);
  info.storage = type.block_elements == 1 ? Storage::raw : Storage::ggml_block;
  info.code = type.id;
  info.type_name = type.name;
  info.stored_bytes = tensor.nbytes;
  return info;
}

/// Describes the buffer of Stored::is_rebuilt().
void set_rebuilt(WeightInfo& info) {
  info.storage = Storage::raw;
  info.code = code::kF32;
  info.type_name = name(Dtype::kF32);
}

WeightPart part_of(const GgufTensor& tensor, std::string_view role) {
  const GgmlType& type = *find_ggml_type(tensor.type);  // the header was validated
  return {std::string(role),
          std::string(tensor.name),
          type.id,
          std::string(type.name),
          {tensor.shape().begin(), tensor.shape().end()},
          tensor.nbytes};
}

std::string_view architecture_of(const ModelMetadata& metadata) noexcept {
  const MetaValue* value = metadata.find("general.architecture");
  return value == nullptr ? std::string_view() : value->as_string().value_or("");
}

void GgufBackend::collect() {
  std::vector<std::string_view> names;
  for (const GgufSource& source : set_.tensors()) names.push_back(source.tensor->name);
  std::vector<Mapped> mapped = map_gguf_names(names, architecture_of(model_.metadata));
  std::vector<GgufScale> scales = take_scales(set_, mapped);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_input_scale(set_, names[i])) mapped[i] = {};
  }
  model_.reserve(mapped);
  stored_.reserve(names.size());
  Remarks remarks;
  std::vector<std::string> unused;  // keys of shapes
  for (const std::uint32_t i : order_of(names, mapped)) {
    const GgufSource& source = set_.tensors()[i];
    // Not nullptr: the header was validated.
    const GgmlType* const type = find_ggml_type(source.tensor->type);
    WeightInfo info = info_of(*source.tensor, *type, mapped[i]);
    info.shape = shape_of(*source.tensor, model_.metadata, unused);
    Stored stored{&source, type, std::move(scales[i]), {}};
    if (!stored.scale.refusal.empty()) {
      info.is_decoded = false;
      remarks.note(info.name, stored.scale.refusal);
    }
    if (stored.is_rebuilt()) set_rebuilt(info);
    if (is_input_scale(set_, names[i])) model_.extras.push_back(info.name);
    model_.add(std::move(info), mapped[i].kind == Mapped::Kind::canonical);
    stored_.push_back(std::move(stored));
  }
  remarks.say(model_.warnings);
  if (unused.empty()) return;
  const std::string more =
      unused.size() == 1 ? std::string() : " and " + grouped(unused.size() - 1) + " more";
  model_.warnings.push_back("`" + clipped(unused.front()) + "`" + more +
                            ": not used, because it is not a shape of the tensor's values");
}

void GgufBackend::read_config() {
  std::int64_t embedding_rows = 0;
  bool has_output = false;
  for (const WeightInfo& info : model_.tensors) {
    if (info.name == "token_embedding.weight" && info.shape.size() == 2) {
      embedding_rows = info.shape.front();
    }
    has_output |= info.name == "output.weight";
  }
  model_.config =
      read_gguf_config(model_.metadata, embedding_rows, has_output, set_.files().front().path());
}

void GgufBackend::undo_layout() {
  for (std::size_t i = 0; i < model_.tensors.size(); ++i) {
    WeightInfo& info = model_.tensors[i];
    Undo& undo = stored_[i].undo;
    undo = undo_of(info, model_.config, stored_[i].source->file->path());
    const GgufSource& source = *stored_[i].source;
    if (undo.rows.head_rows != 0 && !std::ranges::equal(info.shape, source.tensor->shape())) {
      fail(Errc::unsupported, source.file->path(), info.source,
           "layout \"hf\": its rows were reordered, and are not the rows that are stored");
    }
    if (undo.lower_by_one) set_rebuilt(info);
  }
  undo_config(model_.config);
}

std::vector<WeightPart> GgufBackend::parts(std::size_t tensor) const {
  const Stored& stored = stored_[tensor];
  std::vector<WeightPart> parts = {part_of(*stored.source->tensor, "weight")};
  if (stored.scale.source != nullptr) {
    parts.push_back(part_of(*stored.scale.source->tensor, "scale"));
  }
  return parts;
}

WeightBuffer::Sections GgufBackend::sections(std::size_t tensor) const {
  const WeightInfo& info = model_.tensor(tensor);
  if (stored_[tensor].is_rebuilt()) {
    const std::uint64_t values = row_count(info.shape) * row_length(info.shape);
    return {memory_size(values * sizeof(float)), 0, 0};
  }
  return {memory_size(info.stored_bytes), 0, 0};
}

std::optional<StoredBytes> GgufBackend::view(std::size_t tensor, const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  if (stored.is_rebuilt() || stored.undo.rows.head_rows != 0) return std::nullopt;
  return stored.source->bytes(interrupt);
}

/// Size of the units that were reordered: rows of a matrix, elements of a vector.
std::uint64_t GgufBackend::unit_nbytes(std::size_t tensor) const noexcept {
  const WeightInfo& info = model_.tensor(tensor);
  return info.stored_bytes / static_cast<std::uint64_t>(info.shape.front());
}

void GgufBackend::gather(std::size_t tensor, RowRange units, std::byte* to,
                         const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const std::uint64_t nbytes = unit_nbytes(tensor);
  // Reads whole heads, because a row may come from anywhere in its head.
  const std::uint64_t head = stored.undo.rows.head_rows;
  const std::uint64_t begin = units.begin / head * head;
  // The rows behind the last head of q and k may be no whole head.
  const auto all = static_cast<std::uint64_t>(model_.tensor(tensor).shape.front());
  const std::uint64_t end = std::min(divide_up(units.end, head) * head, all);
  const StoredBytes heads = stored.source->bytes(begin * nbytes, end * nbytes, interrupt);
  for (std::uint64_t unit = units.begin; unit < units.end; ++unit) {
    const std::uint64_t from = stored.undo.rows.source(unit) - begin;
    std::memcpy(to, heads.bytes.data() + from * nbytes, static_cast<std::size_t>(nbytes));
    to += nbytes;
  }
}

/// Returns rows in the checkpoint's order. A vector is one row, and its elements are the units.
StoredBytes GgufBackend::gathered(std::size_t tensor, RowRange rows,
                                  const Interrupt& interrupt) const {
  const WeightInfo& info = model_.tensor(tensor);
  const auto units = static_cast<std::uint64_t>(info.shape.front());
  const RowRange range = info.shape.size() == 1 ? RowRange{0, units} : rows;
  auto memory = std::make_shared<safetensors::Buffer>(
      memory_size((range.end - range.begin) * unit_nbytes(tensor)));
  gather(tensor, range, memory->data(), interrupt);
  const std::span<const std::byte> bytes = memory->bytes();
  return {bytes, std::move(memory)};
}

void GgufBackend::write(std::size_t tensor, std::size_t, std::span<std::byte> to,
                        const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const WeightInfo& info = model_.tensor(tensor);
  if (stored.is_rebuilt()) {
    dequantize(tensor, {0, row_count(info.shape)}, Output::f32, to.data(), interrupt);
  } else if (stored.undo.rows.head_rows != 0) {
    gather(tensor, {0, static_cast<std::uint64_t>(info.shape.front())}, to.data(), interrupt);
  } else {
    stored.source->read(0, to, interrupt);
  }
}

/// Returns what is to be done with decoded values; empty if nothing.
ChangeValues GgufBackend::change_of(std::size_t tensor, const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const bool lowers = stored.undo.lower_by_one;
  if (stored.scale.source == nullptr && !lowers) return {};
  std::vector<float> scales;
  if (stored.scale.source != nullptr) scales = scale_values(stored.scale, interrupt);
  const WeightInfo& info = model_.tensor(tensor);
  const std::uint64_t values = row_count(info.shape) * row_length(info.shape);
  const std::uint64_t of_scale = values / std::max<std::uint64_t>(1, scales.size());
  return [=, scales = std::move(scales)](std::uint64_t begin, std::size_t count, float* to) {
    for (std::size_t done = 0; !scales.empty() && done < count;) {
      const std::uint64_t place = begin + done;
      const std::uint64_t matrix = place / of_scale;
      const auto some = static_cast<std::size_t>(
          std::min<std::uint64_t>(count - done, (matrix + 1) * of_scale - place));
      const float scale = scales[static_cast<std::size_t>(matrix)];
      for (std::size_t i = done; i < done + some; ++i) to[i] *= scale;
      done += some;
    }
    for (std::size_t i = 0; lowers && i < count; ++i) to[i] -= 1.0F;
  };
}

void GgufBackend::dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                             const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const WeightInfo& info = model_.tensor(tensor);
  const fs::path& path = stored.source->file->path();
  if (!stored.scale.refusal.empty()) {
    fail(Errc::unsupported, path, info.source, stored.scale.refusal);
  }
  if (!can_dequantize(stored.type->id)) {
    fail(Errc::unsupported, path, info.source,
         "values of type " + std::string(stored.type->name) + " are not decoded");
  }
  const std::uint64_t columns = row_length(info.shape);
  const std::uint64_t begin = rows.begin * columns;
  const std::uint64_t end = rows.end * columns;
  StoredBytes bytes;
  if (stored.undo.rows.head_rows != 0) {
    bytes = gathered(tensor, rows, interrupt);
  } else {
    const std::uint64_t block_values = stored.type->block_elements;
    const std::uint64_t block_nbytes = stored.type->block_bytes;
    bytes = stored.source->bytes(begin / block_values * block_nbytes,
                                 divide_up(end, block_values) * block_nbytes, interrupt);
  }
  dequantize_values(stored.type->id, bytes.bytes.data(), begin, end, change_of(tensor, interrupt),
                    output, to, interrupt);
}

bool GgufBackend::same_kind(std::size_t a, std::size_t b) const {
  // A kernel of the fused blocks could not tell which scale is whose.
  const auto has_scale = [&](const Stored& stored) {
    return stored.is_block() && (stored.scale.source != nullptr || !stored.scale.refusal.empty());
  };
  return model_.tensor(a).code == model_.tensor(b).code && !has_scale(stored_[a]) &&
         !has_scale(stored_[b]);
}

}  // namespace

std::unique_ptr<Backend> open_gguf(const Files& files, const fs::path& path,
                                   const ModelOptions& options) {
  return std::make_unique<GgufBackend>(files, path, options);
}

}  // namespace safetensors::weights

#include "weights/gguf_backend.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "safetensors/dtype.hpp"
#include "weights/dequant/ggml_types.hpp"
#include "weights/fail.hpp"
#include "weights/gguf_config.hpp"
#include "weights/gguf_layout.hpp"
#include "weights/gguf_set.hpp"
#include "weights/names.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

/// A tensor's source, type, and the change of its numbers to undo.
struct Stored {
  const GgufSource* source;
  const GgmlType* type;
  Undo undo;
};

class GgufBackend final : public Backend {
 public:
  GgufBackend(const fs::path& path, const ModelOptions& options);

  const Model& model() const noexcept override { return model_; }
  WeightBuffer::Sections sections(std::size_t tensor) const override;
  StoredBytes stored(std::size_t tensor, std::size_t /*part*/,
                     const Interrupt& interrupt) const override {
    return stored_[tensor].source->bytes(interrupt);
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
  [[nodiscard]] std::uint64_t values_of(std::size_t tensor, RowRange rows) const noexcept;
  [[nodiscard]] std::uint64_t unit_nbytes(std::size_t tensor) const noexcept;
  void gather(std::size_t tensor, RowRange units, std::byte* to, const Interrupt& interrupt) const;
  [[nodiscard]] StoredBytes stored_rows(std::size_t tensor, RowRange rows,
                                        const Interrupt& interrupt) const;

  Model model_;
  GgufSet set_;
  std::vector<Stored> stored_;  ///< by tensor
};

GgufOptions options_of(const ModelOptions& options) {
  return {options.mmap, options.allow_gaps, options.limits};
}

GgufBackend::GgufBackend(const fs::path& path, const ModelOptions& options)
    : set_(path, options_of(options)) {
  model_.format = Format::gguf;
  model_.path = path;
  for (const GgufFile& file : set_.files()) model_.files.push_back(file.path());
  model_.metadata = set_.metadata();
  collect();
  read_config();
  if (options.layout == ModelOptions::hf) {
    check_layout_known(model_.config, path);
    undo_layout();
  }
  finish_model(model_);
}

WeightInfo info_of(const GgufTensor& tensor, const GgmlType& type, Mapped& mapped) {
  WeightInfo info;
  info.source = tensor.name;
  info.name =
      mapped.kind == Mapped::Kind::canonical ? std::move(mapped.name) : std::string(info.source);
  info.shape.assign(tensor.shape().begin(), tensor.shape().end());
  info.storage = type.block_elements == 1 ? Storage::raw : Storage::ggml_block;
  info.code = type.id;
  info.type_name = type.name;
  info.stored_bytes = tensor.nbytes;
  return info;
}

std::string_view architecture_of(const ModelMetadata& metadata) noexcept {
  const MetaValue* value = metadata.find("general.architecture");
  return value == nullptr ? std::string_view() : value->as_string().value_or("");
}

void GgufBackend::collect() {
  std::vector<std::string_view> names;
  for (const GgufSource& source : set_.tensors()) names.push_back(source.tensor->name);
  std::vector<Mapped> mapped = map_gguf_names(names, architecture_of(model_.metadata));
  model_.reserve(mapped);
  stored_.reserve(names.size());
  for (const std::uint32_t i : order_of(names, mapped)) {
    const GgufSource& source = set_.tensors()[i];
    // Not nullptr: the header was validated.
    const GgmlType* const type = find_ggml_type(source.tensor->type);
    const bool is_mapped = mapped[i].kind == Mapped::Kind::canonical;
    model_.add(info_of(*source.tensor, *type, mapped[i]), is_mapped);
    stored_.push_back({&source, type, {}});
  }
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
    if (!undo.lower_by_one) continue;
    info.storage = Storage::raw;
    info.code = code::kF32;
    info.type_name = name(Dtype::kF32);
  }
  undo_config(model_.config);
}

std::uint64_t GgufBackend::values_of(std::size_t tensor, RowRange rows) const noexcept {
  return (rows.end - rows.begin) * row_length(model_.tensor(tensor).shape);
}

WeightBuffer::Sections GgufBackend::sections(std::size_t tensor) const {
  const WeightInfo& info = model_.tensor(tensor);
  if (stored_[tensor].undo.lower_by_one) {
    const std::uint64_t values = row_count(info.shape) * row_length(info.shape);
    return {static_cast<std::size_t>(values * sizeof(float)), 0, 0};
  }
  return {static_cast<std::size_t>(info.stored_bytes), 0, 0};
}

std::optional<StoredBytes> GgufBackend::view(std::size_t tensor, const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  if (stored.undo.lower_by_one || stored.undo.rows.head_rows != 0) return std::nullopt;
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
  const std::uint64_t end = (units.end + head - 1) / head * head;
  const StoredBytes heads = stored.source->bytes(begin * nbytes, end * nbytes, interrupt);
  for (std::uint64_t unit = units.begin; unit < units.end; ++unit) {
    const std::uint64_t from = stored.undo.rows.source(unit) - begin;
    std::memcpy(to, heads.bytes.data() + from * nbytes, static_cast<std::size_t>(nbytes));
    to += nbytes;
  }
}

StoredBytes GgufBackend::stored_rows(std::size_t tensor, RowRange rows,
                                     const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const WeightInfo& info = model_.tensor(tensor);
  if (stored.undo.rows.head_rows != 0) {
    // A vector is one row, and its elements are the units.
    const auto units = static_cast<std::uint64_t>(info.shape.front());
    const RowRange range = info.shape.size() == 1 ? RowRange{0, units} : rows;
    auto memory = std::make_shared<safetensors::Buffer>(
        static_cast<std::size_t>((range.end - range.begin) * unit_nbytes(tensor)));
    gather(tensor, range, memory->data(), interrupt);
    const std::span<const std::byte> bytes = memory->bytes();
    return {bytes, std::move(memory)};
  }
  const std::uint64_t row_nbytes = info.stored_bytes / row_count(info.shape);
  return stored.source->bytes(rows.begin * row_nbytes, rows.end * row_nbytes, interrupt);
}

void GgufBackend::write(std::size_t tensor, std::size_t, std::span<std::byte> to,
                        const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  const WeightInfo& info = model_.tensor(tensor);
  if (stored.undo.lower_by_one) {
    dequantize(tensor, {0, row_count(info.shape)}, Output::f32, to.data(), interrupt);
  } else if (stored.undo.rows.head_rows != 0) {
    gather(tensor, {0, static_cast<std::uint64_t>(info.shape.front())}, to.data(), interrupt);
  } else {
    stored.source->read(0, to, interrupt);
  }
}

void GgufBackend::dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                             const Interrupt& interrupt) const {
  const Stored& stored = stored_[tensor];
  if (!can_dequantize(stored.type->id)) {
    fail(Errc::unsupported, stored.source->file->path(), model_.tensor(tensor).source,
         "values of type " + std::string(stored.type->name) + " are not decoded");
  }
  const StoredBytes bytes = stored_rows(tensor, rows, interrupt);
  const std::uint64_t values = values_of(tensor, rows);
  const std::uint64_t blocks = values / stored.type->block_elements;
  if (!stored.undo.lower_by_one) {
    dequantize_blocks(stored.type->id, bytes.bytes.data(), blocks, output, to, interrupt);
    return;
  }
  std::vector<float> lowered(static_cast<std::size_t>(values));
  auto* const raw = reinterpret_cast<std::byte*>(lowered.data());
  dequantize_blocks(stored.type->id, bytes.bytes.data(), blocks, Output::f32, raw, interrupt);
  for (float& value : lowered) value -= 1.0F;
  if (output == Output::f32) {
    std::memcpy(to, raw, lowered.size() * sizeof(float));
  } else {
    dequantize_blocks(ggml::kF32, raw, values, output, to, interrupt);
  }
}

bool GgufBackend::same_kind(std::size_t a, std::size_t b) const {
  return model_.tensor(a).code == model_.tensor(b).code;
}

}  // namespace

std::unique_ptr<Backend> open_gguf(const fs::path& path, const ModelOptions& options) {
  return std::make_unique<GgufBackend>(path, options);
}

}  // namespace safetensors::weights

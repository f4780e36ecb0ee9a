// The interface between formats and the provider. Another format is another Backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dequant/dequant.hpp"
#include "model/stored_bytes.hpp"
#include "names/names.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/weights/buffer.hpp"
#include "safetensors/weights/config.hpp"
#include "safetensors/weights/metadata.hpp"
#include "safetensors/weights/options.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// What a backend reads when it opens a model.
struct Model {
  Format format = Format::hf_safetensors;
  std::filesystem::path path;
  std::vector<std::filesystem::path> files;
  ModelConfig config;
  std::vector<WeightInfo> tensors;  ///< those with canonical names, sorted by them
  std::vector<WeightInfo> others;   ///< those without, sorted by their names in the file
  std::vector<std::string> extras;  ///< names of the others that are scales of activations
  std::vector<std::string> warnings;
  std::string undecoded_method;  ///< quant_method, if tensors of it are not decoded
  ModelMetadata metadata;

  /// Returns a tensor by its index: first the tensors with canonical names, then the others.
  [[nodiscard]] const WeightInfo& tensor(std::size_t index) const {
    return index < tensors.size() ? tensors[index] : others[index - tensors.size()];
  }
  /// Reserves memory for exactly the tensors of order_of(): there may be a quarter of a million.
  void reserve(std::span<const Mapped> mapped);
  /// Appends a tensor.
  ///
  /// Requires: tensors are added in the order of order_of().
  /// Throws: duplicate if two tensors have the same name.
  void add(WeightInfo info, bool is_mapped);
};

/// Returns the order of a model's tensors: first those with canonical names, then the others, each
/// sorted by name, without those that are ignored. `mapped` are the canonical names of `names`.
[[nodiscard]] std::vector<std::uint32_t> order_of(std::span<const std::string_view> names,
                                                  std::span<const Mapped> mapped);

/// Completes the configuration from the tensors, and adds warnings about it.
///
/// Requires: all tensors have been added.
void finish_model(Model& model);

/// A range of rows of a tensor.
struct RowRange {
  std::uint64_t begin;
  std::uint64_t end;
};

/// An open model of one format. `tensor` is an index for Model::tensor().
///
/// Thread safety: immutable; several threads may call all members at once.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual const Model& model() const noexcept = 0;

  /// Returns the lengths of a tensor's sections (see WeightBuffer).
  [[nodiscard]] virtual WeightBuffer::Sections sections(std::size_t tensor) const = 0;
  /// Returns the bytes of one of the tensor's parts as stored.
  /// Requires: part < part_count(tensor).
  [[nodiscard]] virtual StoredBytes stored(std::size_t tensor, std::size_t part,
                                           const Interrupt& interrupt) const = 0;
  /// Returns the bytes of the tensor with that name in the files; nothing if there is none.
  [[nodiscard]] virtual std::optional<StoredBytes> stored_part(
      std::string_view source, const Interrupt& interrupt) const = 0;
  /// Returns the tensors of the file that make up the tensor.
  [[nodiscard]] virtual std::vector<WeightPart> parts(std::size_t tensor) const = 0;
  /// Returns parts(tensor).size().
  [[nodiscard]] virtual std::size_t part_count(std::size_t tensor) const = 0;
  /// Returns the file's bytes if they are the buffer as they are; nothing if it has to be built.
  [[nodiscard]] virtual std::optional<StoredBytes> view(std::size_t tensor,
                                                        const Interrupt& interrupt) const = 0;
  /// Writes one section of the buffer.
  /// Requires: `to` has the length that sections() returns.
  virtual void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
                     const Interrupt& interrupt) const = 0;
  /// Decodes rows. Requires: they have at least one value.
  virtual void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                          const Interrupt& interrupt) const = 0;
  /// Returns whether two tensors agree in all that must be equal for fusing, except for shapes.
  [[nodiscard]] virtual bool same_kind(std::size_t a, std::size_t b) const = 0;
};

/// Returns the number of rows: the product of all axes but the last. 1 for a vector or scalar.
[[nodiscard]] std::uint64_t row_count(std::span<const std::int64_t> shape) noexcept;
/// Returns the number of values in a row.
[[nodiscard]] std::uint64_t row_length(std::span<const std::int64_t> shape) noexcept;

}  // namespace safetensors::weights

// What a file format has to offer to become a model.
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

#include "safetensors/buffer.hpp"
#include "safetensors/weights/buffer.hpp"
#include "safetensors/weights/config.hpp"
#include "safetensors/weights/metadata.hpp"
#include "safetensors/weights/options.hpp"
#include "safetensors/weights/types.hpp"
#include "weights/dequant/dequant.hpp"
#include "weights/names.hpp"
#include "weights/stored_bytes.hpp"

namespace safetensors::weights {

/// What a backend finds out when it opens a model.
struct Model {
  Format format = Format::hf_safetensors;
  std::filesystem::path path;
  std::vector<std::filesystem::path> files;
  ModelConfig config;
  std::vector<WeightInfo> tensors;  ///< with canonical names, sorted by them
  std::vector<WeightInfo> others;   ///< without, sorted
  std::vector<std::string> warnings;
  ModelMetadata metadata;

  /// A tensor by its index: those with canonical names first, then the others.
  [[nodiscard]] const WeightInfo& tensor(std::size_t index) const {
    return index < tensors.size() ? tensors[index] : others[index - tensors.size()];
  }
  /// Makes room for the tensors of order_of(), and no more: there may be a quarter of a million.
  void reserve(std::span<const Mapped> mapped);
  /// Appends a tensor; they come in the order of order_of(). Throws Error duplicate when the
  /// one before it has the same canonical name.
  void add(WeightInfo info, bool is_mapped);
};

/// The order of a model's tensors: those with canonical names first, each by name; those that are
/// ignored are left out. `mapped` are the canonical names of `names`.
[[nodiscard]] std::vector<std::uint32_t> order_of(std::span<const std::string_view> names,
                                                  std::span<const Mapped> mapped);

/// Completes the configuration with what only the tensors tell, and adds the warnings about it.
/// Requires: all tensors are added.
void finish_model(Model& model);

/// A range of rows of a tensor, within it.
struct RowRange {
  std::uint64_t begin;
  std::uint64_t end;
};

/// One format. Immutable once open; all members are thread safe. `tensor` is an index of model().
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual const Model& model() const noexcept = 0;

  /// Lengths of the parts of a tensor's buffer, as WeightBuffer::sections says them.
  [[nodiscard]] virtual WeightBuffer::Sections sections(std::size_t tensor) const = 0;
  /// The bytes of the tensor as the file has them; of a pack those of its words.
  [[nodiscard]] virtual StoredBytes stored(std::size_t tensor,
                                           const Interrupt& interrupt) const = 0;
  /// The buffer when it need not be built: the file's own bytes. Nothing otherwise.
  [[nodiscard]] virtual std::optional<StoredBytes> view(std::size_t tensor,
                                                        const Interrupt& interrupt) const = 0;
  /// Writes one part of the buffer, as long as sections() says.
  virtual void write(std::size_t tensor, std::size_t section, std::span<std::byte> to,
                     const Interrupt& interrupt) const = 0;
  /// Writes the values of some rows.
  virtual void dequantize(std::size_t tensor, RowRange rows, Output output, std::byte* to,
                          const Interrupt& interrupt) const = 0;
  /// What must be equal, beside shapes, for two tensors to be fused.
  [[nodiscard]] virtual bool same_kind(std::size_t a, std::size_t b) const = 0;
};

/// Rows of a shape: its leading axes taken together. One for a vector or scalar.
[[nodiscard]] std::uint64_t row_count(std::span<const std::int64_t> shape) noexcept;
/// Values of a row.
[[nodiscard]] std::uint64_t row_length(std::span<const std::int64_t> shape) noexcept;

}  // namespace safetensors::weights

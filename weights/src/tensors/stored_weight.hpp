// The interface between the backend for safetensors and the ways in which files store a weight.
#pragma once

#include <cassert>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/backend.hpp"
#include "safetensors/weights/options.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// A tensor of the file that belongs to a weight.
struct Part {
  std::string_view role;  ///< such as "weight_scale"; refers to the tensor's name
  const SourceTensor* tensor;
};

/// Returns the part whose role is the last component of the tensor's name.
[[nodiscard]] inline Part part_of(const SourceTensor& tensor) noexcept {
  const std::string_view name = tensor.info->name;
  return {name.substr(name.rfind('.') + 1), &tensor};  // npos + 1 is 0
}

/// Returns the parts that are there: those of tensors that are not null.
[[nodiscard]] inline std::vector<Part> parts_of(
    std::initializer_list<const SourceTensor*> tensors) {
  std::vector<Part> parts;
  parts.reserve(tensors.size());
  for (const SourceTensor* const tensor : tensors) {
    if (tensor != nullptr) parts.push_back(part_of(*tensor));
  }
  return parts;
}

/// Returns the name without its last component: "M" of "M.weight".
[[nodiscard]] inline std::string_view module_of(const SourceTensor& tensor) noexcept {
  const std::string_view name = tensor.info->name;
  const std::size_t end = name.rfind('.');
  return name.substr(0, end == std::string_view::npos ? 0 : end);
}

/// A weight of a safetensors file: a plain tensor, an MLX pack, or a weight of a scheme. Has no
/// more than pointers to its tensors and a few numbers: there may be a hundred thousand.
///
/// Thread safety: immutable; several threads may call all members at once.
/// Lifetime: the SourceTensors outlive it.
class StoredWeight {
 public:
  StoredWeight() = default;
  StoredWeight(const StoredWeight&) = delete;
  StoredWeight& operator=(const StoredWeight&) = delete;
  virtual ~StoredWeight() = default;

  /// Fills in all but the names.
  virtual void fill(const ModelOptions& options, WeightInfo& info) const = 0;
  /// Returns the tensors, in the order of the sections of the buffer.
  [[nodiscard]] virtual std::vector<Part> parts() const = 0;
  /// Decodes rows of the described shape. Requires: they have at least one value.
  virtual void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
                      const Interrupt& interrupt) const = 0;
  /// Returns whether the buffers of the two can be concatenated section by section. `info` and
  /// `next` describe them; their shapes are compared elsewhere.
  [[nodiscard]] virtual bool fuses_with(const WeightInfo& info, const StoredWeight& other,
                                        const WeightInfo& next,
                                        const ModelOptions& options) const = 0;

  // Members for the buffer, see Backend. By default it consists of the parts as stored.
  [[nodiscard]] virtual WeightBuffer::Sections sections(const ModelOptions& options) const;
  [[nodiscard]] virtual std::optional<StoredBytes> view(const ModelOptions& options,
                                                        const Interrupt& interrupt) const;
  virtual void write(std::size_t section, std::span<std::byte> to, const ModelOptions& options,
                     const Interrupt& interrupt) const;
};

/// Returns a tensor's shape. Throws: overflow if an axis does not fit in 63 bits.
[[nodiscard]] std::vector<std::int64_t> signed_shape(const SourceTensor& tensor);

/// Reads rows of a tensor of `all` rows.
///
/// Requires: the rows have equal numbers of whole bytes.
[[nodiscard]] inline StoredBytes read_rows(const SourceTensor& tensor, std::uint64_t all,
                                           RowRange rows, const Interrupt& interrupt) {
  assert(tensor.info->nbytes() % all == 0);
  const std::uint64_t row = tensor.info->nbytes() / all;
  return tensor.bytes(rows.begin * row, rows.end * row, interrupt);
}

/// Rounds values of a tensor to F16. `stored` are bytes of the tensor.
///
/// Throws: f16_overflow, unless the options allow it.
void write_f16(const SourceTensor& tensor, std::span<const std::byte> stored,
               std::span<std::byte> to, const ModelOptions& options, const Interrupt& interrupt);

}  // namespace safetensors::weights

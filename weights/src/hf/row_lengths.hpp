// Row lengths of packs, from other tensors and from the configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/name_index.hpp"
#include "hf/quant_params.hpp"
#include "names/names.hpp"
#include "safetensors/weights/config.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// Row lengths of one model's matrices.
///
/// A pack hides the length of its rows, but not their number, and norms are not packed. In
///
///     x --norm--> [up: f rows of d values] --> [down: d rows of f values] --> x
///
/// the length of the norm is d, the row length of `up`; the number of rows of `up` is f, the row
/// length of `down`.
class RowLengths {
 public:
  /// `names` are the canonical names of `tensors`, in the same order.
  /// Lifetime: all three arguments must outlive this.
  RowLengths(std::span<const SourceTensor> tensors, std::span<const Mapped> names,
             const ModelConfig& config);

  /// Returns the evidence for the matrix with this canonical name, such as
  /// "layers.0.ffn.down.weight".
  [[nodiscard]] RowEvidence of(std::string_view canonical) const;

 private:
  struct Place;
  using Length = std::optional<std::uint64_t>;

  [[nodiscard]] Length known(const Place& place) const;
  [[nodiscard]] Length likely(const Place& place) const;
  [[nodiscard]] Length from_config(const Place& place) const;

  [[nodiscard]] const safetensors::TensorInfo* find(const Place& place, std::string_view module,
                                                    std::string_view ending = ".weight") const;
  [[nodiscard]] Length rows(const Place& place, std::string_view module) const;
  [[nodiscard]] Length norm_length(const Place& place, std::string_view module) const;
  [[nodiscard]] Length rows_of_up(const Place& place) const;
  [[nodiscard]] Length nope_length(const Place& place) const;
  [[nodiscard]] Length linear_values(const Place& place) const;
  [[nodiscard]] Length rows_of_values(const Place& place) const;

  std::span<const SourceTensor> tensors_;
  std::span<const Mapped> names_;
  const ModelConfig& config_;
  NameIndex index_;          ///< of the canonical names
  bool norms_tell_ = false;  ///< attention and feed-forward read the output of the norms
};

}  // namespace safetensors::weights

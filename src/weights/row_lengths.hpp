// How long the rows of packs are, by the tensors around them and by the configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/weights/config.hpp"
#include "weights/name_index.hpp"
#include "weights/names.hpp"
#include "weights/quant_params.hpp"
#include "weights/source_tensors.hpp"

namespace safetensors::weights {

/// Answers for the tensors of one model. Rows are never packed, so the number of rows of one matrix
/// says how long the rows of the matrix behind it are; a norm is as long as what it normalises.
class RowLengths {
 public:
  /// `names` are the canonical names of `tensors`, in their order. All three must outlive this.
  RowLengths(std::span<const SourceTensor> tensors, std::span<const Mapped> names,
             const ModelConfig& config);

  /// Of the matrix with this canonical name, as "layers.0.ffn.down.weight".
  [[nodiscard]] RowEvidence of(std::string_view canonical) const;

 private:
  struct Place;
  using Length = std::optional<std::uint64_t>;

  [[nodiscard]] Length known(const Place& place) const;
  [[nodiscard]] Length likely(const Place& place) const;
  [[nodiscard]] Length from_config(const Place& place) const;

  [[nodiscard]] const safetensors::TensorInfo* find(const Place& place,
                                                    std::string_view module) const;
  [[nodiscard]] Length rows(const Place& place, std::string_view module) const;
  [[nodiscard]] Length norm_length(const Place& place, std::string_view module) const;
  [[nodiscard]] Length rows_of_up(const Place& place) const;
  [[nodiscard]] Length rows_of_values(const Place& place) const;

  std::span<const SourceTensor> tensors_;
  std::span<const Mapped> names_;
  const ModelConfig& config_;
  NameIndex index_;          ///< of the canonical names
  bool norms_tell_ = false;  ///< attention and feed-forward read what the layer's norm gives
};

}  // namespace safetensors::weights

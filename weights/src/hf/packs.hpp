// Finds MLX packs: a weight of packed words, with tensors of scales and perhaps biases.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hf/config.hpp"
#include "hf/quant_params.hpp"
#include "hf/row_lengths.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// The tensors of one pack.
struct PackTensors {
  const SourceTensor* words = nullptr;
  const SourceTensor* scales = nullptr;
  const SourceTensor* biases = nullptr;        ///< of the affine mode
  const SourceTensor* global_scale = nullptr;  ///< of nvfp4, optional
};

/// A pack and its parameters.
struct Pack {
  PackTensors tensors;
  QuantChoice quant;  ///< empty without a remark: the caller has to state them
};

/// The entries of single modules in `quantization`. Their keys may have another prefix than the
/// tensors: "model.language_model.layers.0.x" for "language_model.model.layers.0.x".
///
/// Lifetime: the arguments must outlive this.
class ModuleEntries {
 public:
  ModuleEntries(const HfConfig& config, std::span<const SourceTensor> tensors);

  /// Returns the entry of a module: that of its name, else the only one whose key is the name but
  /// for such a prefix, if no other module has that name. Nothing if there is none.
  [[nodiscard]] const ModuleQuant* find(std::string_view module);
  /// Warns of entries with parameters that no module of find() had.
  void say_unused(std::vector<std::string>& warnings) const;

 private:
  using Entry = std::pair<const std::string, ModuleQuant>;

  const HfConfig& config_;
  std::map<std::string_view, const Entry*> by_inner_;  ///< nullptr if several have the name
  std::set<const ModuleQuant*> used_;
};

/// Returns the pack whose words are `weight`, or nothing if it is not a pack. `canonical` is its
/// canonical name, or empty. Checks types, shapes and parameters against each other
/// (docs/quantisation.md, "Packs").
///
/// Throws: quant_mismatch, with both shapes.
[[nodiscard]] std::optional<Pack> find_pack(const SourceTensors& tensors,
                                            const SourceTensor& weight, std::string_view canonical,
                                            const HfConfig& config, ModuleEntries& entries,
                                            const RowLengths& lengths,
                                            const std::optional<QuantParams>& given);

/// Returns the types and shapes of a pack's tensors for messages.
[[nodiscard]] std::string described(const PackTensors& pack);

}  // namespace safetensors::weights

// Finds MLX packs: a weight of packed words, with tensors of scales and perhaps biases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weights/hf_config.hpp"
#include "weights/quant_params.hpp"
#include "weights/row_lengths.hpp"
#include "weights/source_tensors.hpp"

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

/// Returns the pack whose words are `weight`, or nothing if it is not a pack. `canonical` is its
/// canonical name, or empty. Checks types, shapes and parameters against each other
/// (docs/weights.md, "Packs").
///
/// Throws: quant_mismatch, with both shapes.
[[nodiscard]] std::optional<Pack> find_pack(const SourceTensors& tensors,
                                            const SourceTensor& weight, std::string_view canonical,
                                            const HfConfig& config, const RowLengths& lengths,
                                            const std::optional<QuantParams>& given);

/// Returns the types and shapes of a pack's tensors for messages.
[[nodiscard]] std::string described(const PackTensors& pack);

}  // namespace safetensors::weights

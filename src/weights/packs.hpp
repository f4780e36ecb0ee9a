// MLX packs: a weight of packed words with scales, and perhaps biases, beside it.
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

/// A pack and how it is to be read.
struct Pack {
  PackTensors tensors;
  QuantChoice quant;  ///< no parameters and no remark: the caller has to say them
};

/// The pack of which `weight` has the words; nothing when it is no pack. `canonical` is its
/// canonical name, empty without one. Checks types, shapes and parameters against each other
/// (docs/weights.md, "Packs"). Throws Error quant_mismatch, with both shapes.
[[nodiscard]] std::optional<Pack> find_pack(const SourceTensors& tensors,
                                            const SourceTensor& weight, std::string_view canonical,
                                            const HfConfig& config, const RowLengths& lengths,
                                            const std::optional<QuantParams>& given);

/// The types and shapes of a pack's tensors, for an error.
[[nodiscard]] std::string described(const PackTensors& pack);

}  // namespace safetensors::weights

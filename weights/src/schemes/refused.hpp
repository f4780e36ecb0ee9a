// Compares quantisation schemes with the configuration, which may name one that is not decoded.
#pragma once

#include <string>
#include <string_view>

#include "safetensors/weights/types.hpp"
#include "schemes/quant_config.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// Returns whether schemes may claim tensors of a model with this configuration: it has none, or
/// its quant_method and its fields are those of tensors that are decoded.
[[nodiscard]] bool is_decoded_config(const QuantConfig& quant) noexcept;

/// Returns why a tensor that no scheme claimed is not decoded under this configuration; nothing if
/// it is decoded. Does not recognise MLX's packs.
[[nodiscard]] std::string refusal_by_config(const SourceTensor& tensor, const QuantConfig& quant);

/// Checks the scheme that was found by a weight's tensors against quant_method.
///
/// Requires: is_decoded_config(quant).
/// Throws: quant_mismatch, naming both.
void check_method(const QuantConfig& quant, const WeightInfo& info);

}  // namespace safetensors::weights

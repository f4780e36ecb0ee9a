// Compares quantisation schemes with the configuration, which may name one that is not decoded.
#pragma once

#include <string>
#include <string_view>

#include "safetensors/weights/types.hpp"
#include "schemes/quant_config.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// Returns whether this quant_method is known, and none of its tensors are decoded.
[[nodiscard]] bool is_refused(std::string_view method) noexcept;

/// Returns why a tensor that no scheme claimed is not decoded if the configuration has this
/// quant_method; nothing if it is decoded. Does not recognise MLX's packs.
[[nodiscard]] std::string refusal_by_method(const SourceTensor& tensor, std::string_view method);

/// Checks the scheme that was found by a weight's tensors against quant_method. Methods that are
/// not known may have any scheme.
///
/// Throws: quant_mismatch, naming both.
void check_method(const QuantConfig& quant, const WeightInfo& info);

}  // namespace safetensors::weights

// Weights of ComfyUI's quantised files: their tensors and numbers, and how they are decoded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "schemes/scheme.hpp"

namespace safetensors::weights {

enum class ComfyKind : std::uint8_t { nvfp4, mxfp8, int8, w4a4, w4a8, awq };

/// The tensors of a weight: the codes, weight_scale or weight_s_rel, and others by kind:
///
///     nvfp4   weight_scale_2, perhaps pre_quant_scale
///     w4a8    weight_s_channel, perhaps weight_codebook
///     awq     weight_zeros
struct ComfyTensors {
  ComfyKind kind = ComfyKind::nvfp4;
  const SourceTensor* codes = nullptr;
  const SourceTensor* scale = nullptr;
  std::array<const SourceTensor*, 2> more{};

  [[nodiscard]] std::vector<Part> list() const {
    return parts_of({codes, scale, more[0], more[1]});
  }
  /// Returns the rows of codes of all matrices, with padding.
  [[nodiscard]] std::uint64_t stored_rows() const noexcept {
    const auto shape = codes->info->shape;
    std::uint64_t rows = 1;
    for (const std::uint64_t size : shape.first(shape.size() - 1)) rows *= size;
    return rows;
  }
};

/// The numbers of a weight.
struct ComfyForm {
  std::uint64_t rows = 0;  ///< of all matrices, without padding
  std::uint64_t columns = 0;
  std::uint64_t group = 1;     ///< columns of a scale
  std::uint64_t rotation = 0;  ///< of rotated weights
  std::uint8_t bits = 4;
};

/// Returns a weight. Requires: the tensors have been checked (comfy.cpp).
[[nodiscard]] std::unique_ptr<StoredWeight> comfy_weight(const ComfyTensors& tensors,
                                                         const ComfyForm& form);

}  // namespace safetensors::weights

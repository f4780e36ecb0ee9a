// Undoes what the conversion to GGUF changed in a checkpoint's numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "safetensors/weights/config.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// The order of rows of q and k. llama.cpp rotates neighbouring elements, Hugging Face pairs
/// element i with i + d/2. So the conversion (`permute`) alternates the rows of both halves of each
/// head:
///
///     checkpoint   0   1   2   3 | 4   5   6   7      (head_rows = 8)
///     GGUF         0   4   1   5 | 2   6   3   7
///
/// In a fused q, k and v, the rows of v follow those of q and k, and keep their order.
struct RowOrder {
  std::uint64_t head_rows = 0;  ///< rows of a head, an even number; 0 if rows were not reordered
  std::uint64_t end = 0;        ///< the first row behind those that were reordered

  /// Returns the row of the GGUF file that is row `row` of the checkpoint: row i of a head's first
  /// half is at 2i, row i of its second half at 2i + 1.
  [[nodiscard]] std::uint64_t source(std::uint64_t row) const noexcept {
    if (row >= end) return row;
    const std::uint64_t half = head_rows / 2;
    const std::uint64_t in_head = row % head_rows;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }
};

/// The changes to undo for one tensor.
struct Undo {
  RowOrder rows;
  bool lower_by_one = false;  ///< a norm weight that was stored one higher
};

/// Throws: unsupported, with the reason, if the conversion of this architecture is not known or is
/// not
///   undone.
void check_layout_known(const ModelConfig& config, const std::filesystem::path& path);

/// Returns the changes to undo for a tensor, by its canonical name and shape.
///
/// Throws: bad_shape if its rows do not divide into the configuration's heads.
[[nodiscard]] Undo undo_of(const WeightInfo& info, const ModelConfig& config,
                           const std::filesystem::path& path);

/// Changes the configuration to that of the checkpoint.
void undo_config(ModelConfig& config);

}  // namespace safetensors::weights

// What writers of GGUF did to a checkpoint's numbers, and how it is undone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "safetensors/weights/config.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Rows that were reordered for rotary embedding of neighbours: within each head the first half's
/// rows and the second half's alternate.
struct RowOrder {
  std::uint64_t head_rows = 0;  ///< rows of a head, an even number; 0: as they were

  /// The row of the file that is row `row` of the checkpoint.
  [[nodiscard]] std::uint64_t source(std::uint64_t row) const noexcept {
    const std::uint64_t half = head_rows / 2;
    const std::uint64_t in_head = row % head_rows;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }
};

/// What has to be undone for one tensor.
struct Undo {
  RowOrder rows;
  bool lower_by_one = false;  ///< a norm weight that was stored one higher
};

/// Throws Error unsupported, with the reason, when the conversion of this architecture is not known
/// or cannot be undone.
void check_layout_known(const ModelConfig& config, const std::filesystem::path& path);

/// Of a tensor, by its canonical name and shape. Throws Error bad_shape when its rows do not divide
/// into the heads that the configuration says.
[[nodiscard]] Undo undo_of(const WeightInfo& info, const ModelConfig& config,
                           const std::filesystem::path& path);

/// The configuration of the checkpoint that the file was made of.
void undo_config(ModelConfig& config);

}  // namespace safetensors::weights

// The markers by which ComfyUI's files say how a module is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schemes/checkpoint.hpp"

namespace safetensors::weights {

/// What a marker says of a module. Both kinds of markers have the same fields, which may also lie
/// in an inner object "params":
///
///     M.comfy_quant                        a tensor, U8 [n]: {"format": "nvfp4", ...}
///     _quantization_metadata of a header   {"layers": {"M": {"format": "nvfp4", ...}, ...}};
///                                          the names may lack a common prefix
struct ComfyMarker {
  const SourceTensor* weight = nullptr;  ///< M.weight
  std::string format;
  bool is_rotated = false;                  ///< convrot
  std::uint64_t rotation = 256;             ///< convrot_groupsize
  std::optional<std::uint64_t> group_size;  ///< group_size
  std::string where;                        ///< the marker, for texts

  [[nodiscard]] std::string_view module() const noexcept { return module_of(*weight); }
};

/// Returns the markers of all files, sorted by module. Tensors that are markers no longer appear as
/// tensors of their own. Markers that name no weight, or several, cause warnings; weights that one
/// marker may mean are refused.
///
/// Throws: quant_mismatch for markers that contradict each other or say no format; what
///   parse_description() throws.
[[nodiscard]] std::vector<ComfyMarker> read_comfy_markers(Checkpoint& checkpoint);

}  // namespace safetensors::weights

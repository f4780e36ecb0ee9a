// Determines the parameters of packs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/dtype.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Returns the parameters of a mode whose entry states none.
[[nodiscard]] QuantParams defaults_of(QuantMode mode) noexcept;
/// Returns text such as "affine, 4 bits, groups of 64".
[[nodiscard]] std::string shown(const QuantParams& params);

/// Returns the parameters that a pack can have whose rows have `words` words and `groups` scales:
/// three at most; none if no pack has such shapes.
///
/// A row of n values satisfies n * bits = 32 * words and n = groups * group_size. So the shapes fix
/// bits * group_size = 32 * words / groups, and the candidates differ in n.
[[nodiscard]] std::vector<QuantParams> candidates_of(std::uint64_t words, std::uint64_t groups,
                                                     Dtype scales);

/// The number of values in a row of a pack, from sources other than its shapes.
struct RowEvidence {
  std::optional<std::uint64_t> known;   ///< other tensors of the file determine it
  std::optional<std::uint64_t> likely;  ///< other tensors of the file suggest it
  std::optional<std::uint64_t> config;  ///< config.json suggests it
};

/// The parameters of a pack; empty if there are no candidates, or nothing distinguishes them.
struct QuantChoice {
  std::optional<QuantParams> params;
  std::string remark;  ///< why the choice is doubtful or failed; else empty
};

/// Chooses among the candidates of a pack with `groups` scales in a row. `model` are the parameters
/// in the configuration, `given` the caller's. In order of precedence:
///   1. a single candidate;
///   2. the row length that other tensors determine;
///   3. the configuration's parameters, with a remark if likely row lengths differ;
///   4. the row length that other tensors, then the configuration, suggest;
///   5. the caller's parameters.
[[nodiscard]] QuantChoice choose_quant(std::span<const QuantParams> candidates,
                                       std::uint64_t groups, const RowEvidence& evidence,
                                       const std::optional<QuantParams>& model,
                                       const std::optional<QuantParams>& given);

}  // namespace safetensors::weights

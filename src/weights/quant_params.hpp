// Which parameters a pack has.
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

/// The parameters that a mode has when its entry names none.
[[nodiscard]] QuantParams defaults_of(QuantMode mode) noexcept;
[[nodiscard]] std::optional<QuantMode> parse_quant_mode(std::string_view name) noexcept;
[[nodiscard]] std::string_view name(QuantMode mode) noexcept;
/// As "affine, 4 bits, groups of 64".
[[nodiscard]] std::string shown(const QuantParams& params);

/// The parameters that a pack can have whose rows are `words` words and `groups` scales long: there
/// are at most three. Words and scales fix bits * group, and the row length is groups * group, so
/// no two of them have rows of the same length. Empty: such shapes are no pack.
[[nodiscard]] std::vector<QuantParams> candidates_of(std::uint64_t words, std::uint64_t groups,
                                                     Dtype scales);

/// How many values a row of a pack has, by other evidence than its own shapes.
struct RowEvidence {
  std::optional<std::uint64_t> known;   ///< other tensors of the file fix it
  std::optional<std::uint64_t> likely;  ///< other tensors of the file suggest it
  std::optional<std::uint64_t> config;  ///< config.json suggests it
};

/// The parameters that were chosen for a pack. Nothing: the candidates cannot be told apart, or
/// there are none.
struct QuantChoice {
  std::optional<QuantParams> params;
  std::string remark;  ///< why the choice is not beyond doubt, or fails; empty: no doubt
};

/// Chooses among `candidates` of a pack with `groups` scales in a row. `model` are the
/// configuration's parameters for the whole model, `given` the caller's.
[[nodiscard]] QuantChoice choose_quant(std::span<const QuantParams> candidates,
                                       std::uint64_t groups, const RowEvidence& evidence,
                                       const std::optional<QuantParams>& model,
                                       const std::optional<QuantParams>& given);

}  // namespace safetensors::weights

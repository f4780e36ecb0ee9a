// The parts of quantised modules: which tensors beside a weight's codes belong to it.
//
// A module is quantised if the type of its codes is that of no plain number. Every tensor beside
// the codes must then be a part that a scheme claimed, or one on which no weight depends, such as a
// bias. A tensor that is left over may scale, shift or rotate the values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// Sets of types that codes may have.
namespace codes {
inline constexpr std::uint8_t kF8 = 1, kI8 = 2, kBytes = 4, kI32 = 8, kU32 = 16;
}  // namespace codes

/// The names of a scheme's tensors, for texts: the claims decide what is decoded.
struct SchemeParts {
  std::string_view scheme;
  std::string_view role;  ///< of the codes
  std::uint8_t types;     ///< of the codes, a set; kBytes are U8, I8 and F4
  std::array<std::string_view, 8> parts;
};

/// Returns the parts of all schemes.
[[nodiscard]] std::span<const SchemeParts> all_parts() noexcept;

/// Returns the module that a tensor belongs to: "M" of "M.weight" and of "M.weight.absmax".
[[nodiscard]] std::string_view module_with_parts(std::string_view name) noexcept;

/// Returns whether values of this type may be codes. Floats of 16 bits and more, I64 and BOOL are
/// plain numbers in every scheme.
[[nodiscard]] bool is_code_type(Dtype dtype) noexcept;
/// Returns whether codes of this type are floats of 8 bits. E8M0 is a type of scales.
[[nodiscard]] bool is_f8(Dtype dtype) noexcept;

/// Returns whether a tensor with this last component of its name belongs to activations or caches.
[[nodiscard]] bool is_extra_role(std::string_view role) noexcept;

/// Returns whether the values of codes do not depend on a tensor with this role beside them.
[[nodiscard]] bool is_no_part(std::string_view role) noexcept;

/// A tensor that may hold codes, and those beside it:
///
///     codes                            beside them
///     M.weight, M.qweight and others   M.LEAF, M.weight.LEAF
///     M.X, with two axes or more       M.X_LEAF                 (experts in one tensor)
///     M.X_blocks                       M.X_LEAF                 (gpt-oss)
///     M._X_qdata, M.X:qdata            M._X_LEAF, M.X:LEAF      (torchao)
///
/// Modules above and below M have no influence.
struct ModuleCodes {
  struct Beside {
    std::string_view role;  ///< "LEAF" or "weight.LEAF"
    std::uint32_t tensor;   ///< its index
  };
  std::uint32_t tensor = 0;  ///< index of the codes
  std::string_view role;     ///< "weight", ...; "blocks", "qdata"; empty for X
  std::vector<Beside> besides;
};

/// Calls `look` for each tensor that may hold codes. Takes time that is linear in their number.
void for_each_codes(std::span<const SourceTensor> tensors,
                    const std::function<void(const ModuleCodes&)>& look);

/// Why codes are not decoded.
struct PartsRefusal {
  std::string text;
  /// Whether a tensor beside them is the reason. Else they are those of a scheme that did not claim
  /// them, about which the configuration says more.
  bool is_by_part = true;
};

/// Returns why codes with these tensors beside them are not decoded, or nothing if they are an MLX
/// pack. `is_claimed` says whether a scheme claimed the codes; `left` are the roles of the tensors
/// that none did.
///
/// Requires: `left` is not empty.
[[nodiscard]] std::optional<PartsRefusal> refusal_by_parts(const ModuleCodes& module, Dtype dtype,
                                                           bool is_claimed,
                                                           std::span<const std::string_view> left);

}  // namespace safetensors::weights

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

/// Returns whether a tensor with this last component of its name may belong to activations or
/// caches. Its shape decides: see is_scale_of_activations().
[[nodiscard]] bool is_extra_role(std::string_view role) noexcept;

/// Returns whether a tensor with such a name has the shape of a scale of activations: one number;
/// one for each matrix of the stack of codes beside it; or, if `has_heads`, one for each head of a
/// cache: [heads, 1, 1]. Parameters of the same names are vectors. `stack` is the number of
/// matrices, 0 if the codes are no stack.
[[nodiscard]] bool is_scale_of_activations(const SourceTensor& tensor, std::uint64_t stack,
                                           bool has_heads) noexcept;

/// Returns whether the values of codes do not depend on a tensor with this role beside them, if it
/// has the shape that its role demands.
[[nodiscard]] bool is_no_part(std::string_view role) noexcept;

/// Returns the number of matrices of codes: their first axis if they have more than two, else 0.
[[nodiscard]] inline std::uint64_t stack_of(const SourceTensor& codes) noexcept {
  const auto& shape = codes.info->shape;
  return shape.size() > 2 ? shape.front() : 0;
}

/// A tensor that may hold codes, and those beside it:
///
///     codes                            beside them
///     M.weight, M.qweight, M.blocks ... M.LEAF, M.weight.LEAF
///     M.X, with two axes or more       M.X_LEAF                 (experts in one tensor)
///     M.X_blocks                       M.X_LEAF                 (gpt-oss)
///     M._X_qdata, M.X:qdata            M._X_LEAF, M.X:LEAF      (torchao)
///
/// Beside X are also the tensors X.LEAF, and those of M that are named like scales, zero points or
/// codebooks and are no part of another tensor: they may be X's by a convention that is not known.
/// Other modules above and below M have no influence.
struct ModuleCodes {
  struct Beside {
    std::string_view role;  ///< "LEAF" or "weight.LEAF"; the whole name if it is none of these
    std::uint32_t tensor;   ///< its index
    bool is_loose = false;  ///< whether only its name tells that it may be a part
  };
  std::uint32_t tensor = 0;  ///< index of the codes
  std::string_view role;     ///< "weight", ...; "blocks", "qdata"; empty for X
  std::vector<Beside> besides;
};

/// Calls `look` for each tensor that may hold codes. Takes time that is linear in their number,
/// unless one module has most of them.
///
/// Requires: the tensors are sorted by name.
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

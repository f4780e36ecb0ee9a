// Quantisation schemes: how libraries store a weight in several tensors.
//
//     tensors of the files --ending of the name--> rows of kSchemes --claim()--> Checkpoint
//
// To add a scheme: derive a class from SchemeWeight, write a function that recognises its tensors
// and claims them, and add the ending and the function to kSchemes and the names of its parts to
// kParts (table.cpp).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "schemes/checkpoint.hpp"
#include "tensors/stored_weight.hpp"

namespace safetensors::weights {

/// A weight that a scheme stores in several tensors. Its buffer has the parts as stored, back to
/// back.
///
/// describe() fills in shape (the logical one, [.., outputs, inputs]), code, type_name, scheme and
/// scheme_params. The rest is filled in here.
class SchemeWeight : public StoredWeight {
 public:
  void fill(const ModelOptions& options, WeightInfo& info) const final;
  [[nodiscard]] bool fuses_with(const WeightInfo& info, const StoredWeight& other,
                                const WeightInfo& next, const ModelOptions& options) const final;

 protected:
  virtual void describe(WeightInfo& info) const = 0;
  /// Returns whether the first axis of every part is that of the weight, divided by
  /// SchemeParams::group_rows. Then weights are fused part by part.
  [[nodiscard]] virtual bool stores_rows() const noexcept = 0;
};

/// A scheme, by the ending of one of its tensors' names, such as ".qweight".
struct Scheme {
  std::string_view ending;
  /// Looks at a tensor whose name has that ending. Claims it with its companions, refuses it by
  /// name, or does nothing: then the next row with a fitting ending is tried.
  void (*claim)(const SourceTensor& tensor, Checkpoint& checkpoint);
};

/// Returns all schemes.
[[nodiscard]] std::span<const Scheme> all_schemes() noexcept;

/// Returns the number of a tensor's values.
[[nodiscard]] std::uint64_t count_of(const SourceTensor& tensor) noexcept;

/// Returns whether there is one scale, or one for each matrix of a stack of matrices.
[[nodiscard]] bool is_whole_scale(const SourceTensor& scale, const SourceTensor& stack) noexcept;

/// Returns the values of a vector of floats: all, or those of these rows. Nothing of nullptr.
///
/// Throws: io.
[[nodiscard]] std::vector<float> floats_of(const SourceTensor* tensor, const Interrupt& interrupt,
                                           std::optional<RowRange> rows = std::nullopt);

/// Checks scales of the inputs, by which the columns of a weight are multiplied: `scales` is
/// nullptr, or has a float of 16 or 32 bits for each column.
///
/// Throws: quant_mismatch with the types and shapes of the parts.
void check_column_scales(std::span<const Part> parts, const SourceTensor* scales,
                         std::uint64_t columns);

/// Throws quant_mismatch with types and shapes of the parts: "`SUBJECT`: WHAT: ROLE TYPE SHAPE,
/// ...".
[[noreturn]] void mismatch(std::span<const Part> parts, const std::string& what);

}  // namespace safetensors::weights

// Converting Python's index expressions to the core's.
#pragma once

#include <optional>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// The part of a tensor that an index expression selects.
struct SelectedPart {
  Part part;
  std::vector<bool> reversed;  ///< for each axis of the result: whether its order is to be reversed
  bool any_reversed = false;
};

/// Returns what the expression selects if it consists of integers, slices, "..." and None only;
/// nothing if it holds what frameworks have their own rules for: masks, lists, arrays. With
/// `may_reverse`, a slice with a negative step selects the same elements forwards, and is marked as
/// reversed.
///
/// Throws: Error with the names of the tensor and its file: an integer beyond 64 bits or out of
///   bounds, too many indices, a step that is not positive.
[[nodiscard]] std::optional<SelectedPart> select_part(const SafeOpen& file, const TensorInfo& info,
                                                      py::handle index, bool may_reverse);

/// The same for a tensor that is not in a file, without negative steps.
[[nodiscard]] std::optional<Part> select_part(const TensorInfo& info, py::handle index);

}  // namespace safetensors::python

// Python's index expressions as the core's.
#pragma once

#include <optional>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

struct PythonIndex {
  std::vector<Index> indices;
  std::vector<bool> reversed;  ///< for each axis of the result: taken backwards
  bool any_reversed = false;
};

/// The expression when it is made of integers, slices, "..." and None only; nothing when it holds
/// what a framework has rules of its own for: masks, lists, arrays. With `may_reverse` a slice with
/// a negative step comes as the same elements forwards, and is marked as reversed.
/// Raises IndexError for an integer beyond 64 bits, and what Python raises for a bad slice.
[[nodiscard]] std::optional<PythonIndex> basic_index(py::handle index,
                                                     std::span<const std::uint64_t> shape,
                                                     bool may_reverse);

}  // namespace safetensors::python

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

/// Returns the index that an object with a method `part(shape)` gives for a tensor of this shape,
/// as the classes of safetensors.plan do; any other index itself.
///
/// Throws: what part() raises.
[[nodiscard]] py::object resolve_part(py::handle index, std::span<const std::uint64_t> shape);

/// Returns whether the expression has a list that holds a slice. Its lists are then intervals: they
/// hold slices and integers of one axis, which follow one another in the result. Other lists are
/// the framework's advanced indices.
[[nodiscard]] bool has_intervals(py::handle index);
/// Returns whether the expression has a list.
[[nodiscard]] bool has_lists(py::handle index);

/// Returns what an expression of integers, slices, "...", None and lists selects. All its lists are
/// intervals.
///
/// Throws: Error with the names of the tensor and its file: what select_part() below throws;
///   kInvalidArgument for anything else in the expression, and for a part of an F4 tensor without
///   all of the last axis, as two elements share a byte and frameworks count them differently.
[[nodiscard]] RegionPart select_region(const SafeOpen& file, const TensorInfo& info,
                                       py::handle index);

/// Returns what the expression selects if it consists of integers, slices, "..." and None only;
/// nothing if it holds what frameworks have their own rules for: masks, lists, arrays. With
/// `may_reverse`, a slice with a negative step selects the same elements forwards, and is marked as
/// reversed.
///
/// Throws: Error with the names of the tensor and its file: an integer beyond 64 bits or out of
///   bounds, too many indices, a step that is not positive.
[[nodiscard]] std::optional<SelectedPart> select_part(const SafeOpen& file, const TensorInfo& info,
                                                      py::handle index, bool may_reverse);

/// The part of a tensor that a load takes.
struct LoadPart {
  std::vector<ByteRuns> runs;        ///< none for a whole tensor
  std::vector<std::uint64_t> shape;  ///< in elements of the file
};

/// Returns the part that a load takes: an expression of integers, slices, "...", None and lists of
/// integers and slices; an object with a method `part(shape)` that returns one; or None for all.
///
/// Raises SafetensorError for another index, and for a part of an F4 tensor without all of the last
/// axis.
[[nodiscard]] LoadPart select_load_part(const SafeOpen& file, const TensorInfo& info,
                                        py::handle given);

/// The same as select_part() for a tensor that is not in a file, without negative steps.
[[nodiscard]] std::optional<Part> select_part(const TensorInfo& info, py::handle index);

}  // namespace safetensors::python

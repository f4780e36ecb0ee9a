// Plans of the files that writers write, from Python's arguments.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// A tensor that a file will hold.
struct OwnSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  Dtype dtype = Dtype::kU8;

  [[nodiscard]] safetensors::TensorSpec view() const noexcept { return {name, shape, dtype}; }
};

/// `dtype` is the format's name. Throws Error kUnsupportedDtype for others.
[[nodiscard]] OwnSpec spec_of(py::handle name, py::handle dtype, py::handle shape);

/// Converts a list of (name, dtype, shape), or a dict of name to (dtype, shape).
[[nodiscard]] std::vector<OwnSpec> specs_of(py::handle rows);

/// Returns a dict of name to `type`, a class of tuples (dtype, shape). Returns None if one of the
/// values is not a plain contiguous CPU tensor of torch, or if two share memory.
[[nodiscard]] py::object specs_of_torch(const py::dict& tensors, py::handle type);

[[nodiscard]] LayoutPlan plan_of(std::span<const OwnSpec> specs,
                                 const std::optional<Metadata>& metadata, Layout layout,
                                 std::uint64_t data_begin = 0);

/// Converts "canonical", "blocks" or "given". Raises ValueError for others.
[[nodiscard]] Layout layout_of(py::handle object);

}  // namespace safetensors::python

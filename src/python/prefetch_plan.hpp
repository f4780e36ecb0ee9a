// The plan of safe_open.prefetch.
#pragma once

#include <vector>

#include "load_tensors.hpp"

namespace safetensors::python {

/// Returns the requests of a plan, a dict from names to None, a slice of rows or an object with
/// a method part(shape), in the order of the file; all tensors for None. Raises SafetensorError,
/// with upstream's texts, for names that the file lacks, other values, steps other than 1, bounds
/// outside the rows, rows of a tensor without dimensions, types that torch lacks, and an empty
/// plan.
[[nodiscard]] std::vector<Request> requests_of_plan(const std::shared_ptr<const OpenFile>& file,
                                                    py::handle plan);

}  // namespace safetensors::python

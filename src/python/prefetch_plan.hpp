// The plan of safe_open.prefetch.
#pragma once

#include <vector>

#include "load_tensors.hpp"

namespace safetensors::python {

/// What a plan asks for, in the order of the file; None asks for all. Upstream's rules and words:
/// SafetensorError for names the file lacks, values that are neither None nor slices, steps other
/// than 1, bounds outside the rows, rows of scalars, types that torch lacks, and a plan of nothing.
[[nodiscard]] std::vector<Request> requests_of_plan(const std::shared_ptr<const OpenFile>& file,
                                                    py::handle plan);

}  // namespace safetensors::python

// The classes of safetensors._weights.
#pragma once

#include "python.hpp"

namespace safetensors::python {

void register_weights(py::module_& module);

}  // namespace safetensors::python

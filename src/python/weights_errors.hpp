// Errors of the weight layer as Python exceptions.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Makes WeightsError and has this module's C++ errors raised as it.
void register_weights_errors(py::module_& module);

}  // namespace safetensors::python

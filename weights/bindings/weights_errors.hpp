// Translates errors of the weight layer to Python exceptions.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Adds WeightsError to the module, and translates the C++ exceptions of this module to it.
void register_weights_errors(py::module_& module);

}  // namespace safetensors::python

// The extension module safetensors._weights: apart from _core, so that loading tensors does not
// load it.
#include "bind_weights.hpp"
#include "weights_errors.hpp"

PYBIND11_MODULE(_weights, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  m.doc() = "The compiled part of safetensors.weights.";
  register_weights_errors(m);
  register_weights(m);
}

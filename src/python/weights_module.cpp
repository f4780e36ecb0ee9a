// The extension module safetensors._weights. It is separate from _core so that programs that only
// load tensors do not load it.
#include "bind_weights.hpp"
#include "weights_errors.hpp"

PYBIND11_MODULE(_weights, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  m.doc() = "The compiled part of safetensors.weights.";
  register_weights_errors(m);
  register_weights(m);
}

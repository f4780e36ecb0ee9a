// The extension module safetensors._weights, in the file of _core. It is a module of its own so
// that programs that only load tensors do not create its classes.
#include "bind_weights.hpp"
#include "weights_errors.hpp"

PYBIND11_MODULE(_weights, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  m.doc() = "The compiled part of safetensors.weights.";
  register_weights_errors(m);
  register_weights(m);
}

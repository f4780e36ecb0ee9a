// The extension module safetensors._core.
#include "dtypes.hpp"
#include "python.hpp"

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  // The docstrings bring signatures of their own, in the form that inspect reads.
  pybind11::options options;
  options.disable_function_signatures();
  m.doc() = "The compiled part of safetensors.";
  // pybind11 asks the module for this at every definition, and to be refused takes long.
  m.attr("__module__") = m.attr("__name__");
  register_errors(m);
  register_dtypes(m);
  register_open(m);
  register_bytes(m);
  register_save(m);
  py::delattr(m, "__module__");
  define_when_asked(m);
  m.attr("__version__") = SAFETENSORS_PYTHON_VERSION;
  m.attr("__build__") = build_info();
}

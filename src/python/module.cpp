// The extension module safetensors._core: what loads and saves of one file need.
#include "register.hpp"

#if PY_VERSION_HEX < 0x030C0000
// In a subinterpreter the function that pybind11 defines waits for ever: it asks for the GIL by a
// thread state of the main interpreter, while its thread holds the GIL by another one.
#define PyInit__core init_in_main_interpreter
#endif

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  // Docstrings start with a signature in the form that inspect reads.
  pybind11::options options;
  options.disable_function_signatures();
  m.doc() = "The compiled part of safetensors.";
  register_build_info(m);
  register_errors(m);
  register_dtypes(m);
  register_memory(m);
  register_specs(m);
  register_slice(m);
  register_open(m);
  register_load(m);
  register_read(m);
  register_bytes(m);
  register_save(m);
}

#if PY_VERSION_HEX < 0x030C0000
#undef PyInit__core

extern "C" PYBIND11_EXPORT PyObject* PyInit__core();
PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return init_in_main_interpreter();
  PyErr_SetString(PyExc_ImportError, "safetensors does not support subinterpreters");
  return nullptr;
}
#endif

// The extension module safetensors._core.
#include "register.hpp"

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
  register_model_files(m);
  register_read(m);
  register_explain(m);
  register_bytes(m);
  register_digest(m);
  register_sums(m);
  register_patch(m);
  register_folder(m);
  register_save(m);
  register_staged_save(m);
  register_writer(m);
  register_rewrite(m);
}

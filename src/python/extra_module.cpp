// The extension module safetensors._extra, in the file of _core. It is a module of its own so that
// programs that only load and save files do not create its classes.
#include "register.hpp"

PYBIND11_MODULE(_extra, m, pybind11::mod_gil_not_used()) {
  using namespace safetensors::python;
  pybind11::options options;
  options.disable_function_signatures();
  m.doc() = "The compiled part of what is imported on use.";
  register_model_files(m);
  register_group(m);
  register_explain(m);
  register_outline(m);
  register_digest(m);
  register_sums(m);
  register_patch(m);
  register_patch_file(m);
  register_folder(m);
  register_in_place(m);
  register_staged_save(m);
  register_model_writer(m);
  register_writer(m);
  register_rewrite(m);
}

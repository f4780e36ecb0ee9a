// What module.cpp and extra_module.cpp call: each function adds one group of functions and classes
// to the module.
#pragma once

#include "python.hpp"

namespace safetensors::python {

// Of safetensors._core.
void register_build_info(py::module_& module);  // build_info.cpp
void register_errors(py::module_& module);      // errors.cpp; before the others, which raise errors
void register_dtypes(py::module_& module);      // dtypes.cpp
void register_memory(py::module_& module);      // to_numpy.cpp
void register_specs(py::module_& module);       // tensor_spec.cpp
void register_slice(py::module_& module);       // bind_slice.cpp
void register_open(py::module_& module);        // bind_open.cpp
void register_load(py::module_& module);        // bind_load.cpp
void register_read(py::module_& module);        // bind_read.cpp
void register_bytes(py::module_& module);       // bind_bytes.cpp
void register_save(py::module_& module);        // bind_save.cpp

// Of safetensors._extra.
void register_model_files(py::module_& module);   // bind_model_files.cpp
void register_group(py::module_& module);         // bind_group.cpp
void register_explain(py::module_& module);       // bind_explain.cpp
void register_outline(py::module_& module);       // bind_outline.cpp
void register_digest(py::module_& module);        // bind_digest.cpp
void register_sums(py::module_& module);          // bind_sums.cpp
void register_patch(py::module_& module);         // bind_patch.cpp
void register_patch_file(py::module_& module);    // bind_patch_file.cpp
void register_folder(py::module_& module);        // bind_folder.cpp
void register_in_place(py::module_& module);      // bind_in_place.cpp
void register_staged_save(py::module_& module);   // bind_staged_save.cpp
void register_model_writer(py::module_& module);  // bind_model_writer.cpp
void register_writer(py::module_& module);        // bind_writer.cpp
void register_rewrite(py::module_& module);       // bind_rewrite.cpp

}  // namespace safetensors::python

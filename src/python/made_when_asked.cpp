// Parts of the module that are made when they are first asked for.
#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <array>

#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {
namespace {

constexpr std::array kSliceNames = {"PySafeSlice", "TensorMeta"};
constexpr std::array kSpecNames = {"TensorSpec"};
constexpr std::array kFileNames = {"_safe_open_handle"};
constexpr std::array kLoadNames = {
    "PrefetchLoader", "io_config",        "release_staging",  "TensorStream", "_load_groups",
    "_read_request",  "_use_cuda_driver", "_has_cuda_driver", "_open_shard",  "_read_index",
};
constexpr std::array kErrorNames = {"_error_class", "_os_error_class"};

py::module_ own_module() { return py::module_::import("safetensors._core"); }

/// Calls it for the module, whoever asks first.
template <void (*Register)(py::module_&)>
void need() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<bool> storage;
  (void)storage.call_once_and_store_result([] {
    py::options options;
    options.disable_function_signatures();
    py::module_ module = own_module();
    Register(module);
    return true;
  });
}

/// Whether the name is one of those that were not there.
bool make(std::string_view name) {
  const auto is_among = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_among(kSliceNames)) {
    need_slice();
  } else if (is_among(kLoadNames)) {
    need_load();
  } else if (is_among(kSpecNames)) {
    need<register_specs>();
  } else if (is_among(kFileNames)) {
    need<register_file_handle>();
  } else if (is_among(kErrorNames)) {
    need<register_error_class>();
  } else {
    return false;
  }
  return true;
}

/// The module's `__getattr__`: Python calls it for names that are not there (PEP 562), pybind11 for
/// names of its own while others are registered. Not by pybind11, for to throw takes long, and each
/// import asks in vain.
PyObject* attribute(PyObject*, PyObject* name) {
  return guarded([&]() -> py::object {
    if (make(text_of(name, "name"))) return own_module().attr("__dict__")[py::handle(name)];
    PyErr_Format(PyExc_AttributeError, "module 'safetensors._core' has no attribute '%U'", name);
    return {};
  });
}

}  // namespace

void need_slice() { need<register_slice>(); }
void need_load() { need<register_load>(); }
void need_memory() { need<register_memory>(); }

void define_when_asked(py::module_& module) {
  static PyMethodDef definition = {"__getattr__", &attribute, METH_O, nullptr};
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, nullptr));
  if (!function) throw py::error_already_set();
  module.add_object("__getattr__", function);
}

}  // namespace safetensors::python

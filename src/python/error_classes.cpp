#include "error_classes.hpp"

#include <pybind11/gil_safe_call_once.h>

namespace safetensors::python {
namespace {

/// By base: an extension module has one such error.
py::dict& known_classes() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::dict> storage;
  return storage.call_once_and_store_result([] { return py::dict(); }).get_stored();
}

}  // namespace

py::object os_error_class(int os_error) {
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_OSError)(os_error, "");
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())));
}

py::object combined_class(py::handle error, py::handle base, std::string_view prefix,
                          const char* module) {
  py::dict& classes = known_classes();
  if (PyObject* const found = PyDict_GetItemWithError(classes.ptr(), base.ptr())) {
    return py::reinterpret_borrow<py::object>(found);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const auto base_name = py::cast<std::string>(base.attr("__name__"));
  py::dict body;
  body["__module__"] = module;
  body["__doc__"] = "A " + std::string(prefix) + "Error that is a " + base_name + " too.";
  if (PyObject_IsSubclass(base.ptr(), PyExc_OSError) == 1) {
    body["errno"] = py::none();  // then an instance's lies where pickle takes it along
  }
  py::object made = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type))(
      std::string(prefix) + base_name, py::make_tuple(error, base), body);
  PyObject* const kept = PyDict_SetDefault(classes.ptr(), base.ptr(), made.ptr());
  if (kept == nullptr) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(kept);
}

}  // namespace safetensors::python

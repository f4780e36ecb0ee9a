#include "error_classes.hpp"

#include "lazy_value.hpp"

namespace safetensors::python {
namespace {

/// Returns the classes that combined_class() has made, by name.
py::dict& known_classes() {
  static constinit LazyValue<py::dict> classes;
  return classes.get([] { return py::dict(); });
}

}  // namespace

py::object os_error_class(int os_error) {
  const py::object error = py::reinterpret_borrow<py::object>(PyExc_OSError)(os_error, "");
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())));
}

void add_os_error(const py::object& error, int os_error, const std::filesystem::path& path) {
  error.attr("errno") = os_error;
  error.attr("strerror") = py::module_::import("os").attr("strerror")(os_error);
  if (!path.empty()) error.attr("filename") = to_object(path);
}

py::dict error_fields() {
  py::dict fields;
  for (const char* const field : {"code", "path", "subject"}) fields[field] = py::none();
  return fields;
}

py::object combined_class(py::handle error, py::handle base, std::string_view prefix,
                          const char* module) {
  py::dict& classes = known_classes();
  const py::str name = py::str(std::string(prefix)) + py::str(base.attr("__name__"));
  if (PyObject* const found = PyDict_GetItemWithError(classes.ptr(), name.ptr())) {
    return py::reinterpret_borrow<py::object>(found);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  py::dict body = error ? py::dict() : error_fields();  // otherwise inherited from `error`
  body["__module__"] = module;
  body["__doc__"] =
      error ? py::str("A {}Error that is a {} too.").format(prefix, base.attr("__name__"))
            : base.attr("__doc__");
  // The str() of a KeyError would be in quotes, that of an OSError another text.
  body["__str__"] = py::handle(PyExc_Exception).attr("__str__");
  if (PyObject_IsSubclass(base.ptr(), PyExc_OSError) == 1) {
    // Hides OSError's slots, so that an instance stores its values in __dict__, which pickle
    // copies.
    for (const char* const field : {"errno", "strerror", "filename"}) body[field] = py::none();
  }
  py::tuple bases = py::make_tuple(base);
  if (error) bases = py::make_tuple(error, base);
  const py::object made = py::reinterpret_borrow<py::object>(
      reinterpret_cast<PyObject*>(&PyType_Type))(name, bases, body);
  PyObject* const kept = PyDict_SetDefault(classes.ptr(), name.ptr(), made.ptr());
  if (kept == nullptr) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(kept);
}

}  // namespace safetensors::python

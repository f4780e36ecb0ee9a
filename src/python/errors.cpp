#include "errors.hpp"

#include <cerrno>

#include "define.hpp"
#include "error_classes.hpp"

namespace safetensors::python {
namespace {

// Where upstream's class says it lives: pickles and tracebacks name it.
constexpr const char* kErrorName = "safetensors._safetensors_rust.SafetensorError";

PyObject* error_class = nullptr;  // set once while the module is made, never freed

/// The class that is both SafetensorError and `base`.
py::object class_of_both(py::handle base) {
  return combined_class(error_class, base, "Safetensor", "safetensors");
}

/// OSError, or a class of Python's derived from it, with upstream's text.
py::object told_class(py::handle base) {
  return combined_class({}, base, "", "safetensors._errors");
}

void set_error(py::handle type, std::string_view message, int os_error = 0,
               const std::filesystem::path& path = {}) {
  const py::object error = type(to_str(message));
  if (os_error != 0) add_os_error(error, os_error, path);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void set_error(const Error& error, const std::filesystem::path& path = {}) {
  switch (error.code()) {
    case ErrorCode::kIo:
      set_error(told_class(os_error_class(error.os_error())), error.what(), error.os_error(), path);
      return;
    case ErrorCode::kNotRegularFile:
      if (error.os_error() != 0) {
        set_error(told_class(os_error_class(error.os_error())), error.what(), error.os_error(),
                  path);
      } else {
        set_error(class_of_both(PyExc_OSError), error.what(), ENODEV, path);
      }
      return;
    case ErrorCode::kOutOfMemory:
      set_error(PyExc_MemoryError, error.what());
      return;
    case ErrorCode::kIndexOutOfBounds:
    case ErrorCode::kTooManyIndices:
      set_error(class_of_both(PyExc_IndexError), error.what());
      return;
    case ErrorCode::kInvalidSlice:
      set_error(class_of_both(PyExc_ValueError), error.what());
      return;
    default:
      set_error(error_class, error.what());
  }
}

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    set_error(error);
  }
}

}  // namespace

void raise_safetensor_error(std::string_view message) {
  set_error(error_class, message);
  throw py::error_already_set();
}

void raise_both(PyObject* base, std::string_view message) {
  set_error(class_of_both(base), message);
  throw py::error_already_set();
}

void raise_at(const Error& error, const std::filesystem::path& path) {
  set_error(error, path);
  throw py::error_already_set();
}

void raise_unsaved(const Error& error, const std::filesystem::path& path) {
  if (error.os_error() == 0) raise_at(error, path);
  set_error(class_of_both(os_error_class(error.os_error())), error.what(), error.os_error(), path);
  throw py::error_already_set();
}

void register_errors(py::module_& module) {
  error_class = PyErr_NewExceptionWithDoc(
      kErrorName, "What is wrong with a file, a tensor or an argument.", PyExc_Exception, nullptr);
  if (error_class == nullptr) throw py::error_already_set();
  module.add_object("SafetensorError", py::handle(error_class));
  py::register_local_exception_translator(&translate);
}

void register_error_class(py::module_& module) {
  define(
      module, "_error_class", [](py::handle base) { return class_of_both(base); }, py::arg("base"));
  define(
      module, "_os_error_class", [](py::handle base) { return told_class(base); }, py::arg("base"));
}

}  // namespace safetensors::python

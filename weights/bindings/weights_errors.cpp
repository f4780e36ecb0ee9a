#include "weights_errors.hpp"

#include <array>

#include "error_classes.hpp"
#include "fast_def.hpp"
#include "safetensors/weights/error.hpp"

namespace safetensors::python {
namespace {

constexpr const char* kDoc =
    "Raised if a model cannot be read, or not in the requested way.\n\n"
    "`code` names the kind of fault, such as \"quant_mismatch\", `path` is the file, `subject` the "
    "tensor or key at fault, and `offset` its position in the file in bytes, or 0.";
constexpr const char* kUnknownDoc = "Raised if no tensor has this name.";

PyObject* error_class = nullptr;    // set once when the module is initialised, never freed
PyObject* unknown_class = nullptr;  // likewise

py::object new_class(const char* name, const char* doc, const py::object& bases,
                     const py::dict& members) {
  auto made = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(name, doc, bases.ptr(), members.ptr()));
  if (!made) throw py::error_already_set();
  return made;
}

/// Returns the class that derives from WeightsError and `base`, such as FileNotFoundError.
py::object class_of_both(py::handle base) {
  return combined_class(error_class, base, "Weights", "safetensors.weights");
}

void set_error(const weights::WeightsError& error) {
  py::object type = py::reinterpret_borrow<py::object>(error_class);
  if (error.code() == weights::Errc::unknown_tensor) {
    type = py::reinterpret_borrow<py::object>(unknown_class);
  } else if (error.os_error() != 0) {
    type = class_of_both(os_error_class(error.os_error()));
  }
  const py::object raised = type(to_str(error.what()));
  raised.attr("code") = to_str(name(error.code()));
  raised.attr("path") = to_object(error.path());
  raised.attr("subject") = to_str(error.subject());
  raised.attr("offset") = error.offset();
  if (error.os_error() != 0) add_os_error(raised, error.os_error(), error.path());
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void translate(std::exception_ptr pending) {
  if (!pending) return;
  try {
    std::rethrow_exception(pending);
  } catch (const weights::WeightsError& error) {
    set_error(error);
  }
}

}  // namespace

void register_weights_errors(py::module_& module) {
  py::dict members;
  members["code"] = "";
  members["path"] = "";
  members["subject"] = "";
  members["offset"] = 0;
  const py::object error = new_class("safetensors.weights.WeightsError", kDoc,
                                     py::reinterpret_borrow<py::object>(PyExc_ValueError), members);
  py::dict unknown_members;  // KeyError's own __str__ puts the text in quotes
  unknown_members["__str__"] = py::reinterpret_borrow<py::object>(PyExc_ValueError).attr("__str__");
  const py::object unknown = new_class(
      "safetensors.weights.UnknownTensorError", kUnknownDoc,
      py::make_tuple(error, py::reinterpret_borrow<py::object>(PyExc_KeyError)), unknown_members);
  module.attr("WeightsError") = error;
  module.attr("UnknownTensorError") = unknown;
  error_class = error.inc_ref().ptr();
  unknown_class = unknown.inc_ref().ptr();
  define(
      module, "_error_class", [](py::handle base) { return class_of_both(base); }, py::arg("base"));
  py::register_local_exception_translator(translate);
}

}  // namespace safetensors::python

#include "errors.hpp"

#include <algorithm>
#include <cerrno>

#include "error_classes.hpp"
#include "fast_def.hpp"
#include "python_exception.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

// The name of upstream's class. Pickles and tracebacks contain it.
constexpr const char* kErrorName = "safetensors._safetensors_rust.SafetensorError";

constexpr const char* kErrorDoc =
    "An error in a file, a tensor or an argument.\n\n"
    "code: the kind of error, such as \"invalid_offset\": the C interface's names in lower case.\n"
    "path: the file at fault.\n"
    "subject: the tensor or key at fault.\n\n"
    "Each is None where it does not apply.";

// Set once while the module is made, never freed.
PyObject* error_class = nullptr;

/// Returns the class that derives from SafetensorError and `base`.
py::object class_of_both(py::handle base) {
  return combined_class(error_class, base, "Safetensor", "safetensors");
}

/// Returns the class derived from `base`, OSError or one of its subclasses, whose str() is the text
/// of the error.
py::object class_with_text(py::handle base) {
  // Imported, so that cloudpickle ships the classes by their names.
  (void)py::module_::import("safetensors._errors");
  return combined_class({}, base, "", "safetensors._errors");
}

/// Returns the code's name in lower case: "invalid_offset".
py::str code_name(ErrorCode code) {
  std::string text(name(code));
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

void set_error(const Error& error);

/// Returns the exception that an Error was made from, or one for the Error; empty if there is none.
py::object cause_object(const Error& error) {
  if (py::object cause = cause_of(error)) return cause;
  try {
    if (error.cause()) std::rethrow_exception(error.cause());
  } catch (const Error& first) {
    set_error(first);
    return py::error_already_set().value();
  } catch (const py::error_already_set& first) {
    return first.value();
  } catch (...) {  // NOLINT(bugprone-empty-catch): an exception of C++
  }
  return {};
}

/// Makes a Python exception with the fields of the error. `os_error` and `filename`, if not 0 and
/// not empty, are for an OSError.
py::object exception_of(py::handle type, const Error& error, int os_error,
                        const std::filesystem::path& filename) {
  const py::object raised = type(to_str(error.what()));
  raised.attr("code") = code_name(error.code());
  raised.attr("path") = error.path().empty() ? py::none() : to_object(error.path());
  raised.attr("subject") =
      error.subject().empty() ? py::object(py::none()) : to_str(error.subject());
  if (os_error != 0) add_os_error(raised, os_error, filename);
  if (py::object cause = cause_object(error)) {
    PyException_SetCause(raised.ptr(), cause.release().ptr());
  }
  return raised;
}

void set_error(py::handle type, const Error& error, int os_error,
               const std::filesystem::path& filename) {
  PyErr_SetObject(type.ptr(), exception_of(type, error, os_error, filename).ptr());
}

void set_integrity_error(const Error& error) {
  constexpr std::size_t kMaxDamage = 20;
  const auto module = py::module_::import("safetensors._checking.verify");
  const py::object type = module.attr("IntegrityError");
  const py::object raised = exception_of(type, error, 0, {});
  const std::vector<Damage> damage = damage_of(error);
  py::list damaged;
  for (const Damage& each : std::span(damage).first(std::min(damage.size(), kMaxDamage))) {
    damaged.append(module.attr("Damage")(to_str(each.tensor), to_object(each.file), each.begin,
                                         each.end, each.expected, each.found));
  }
  raised.attr("damaged") = damaged;
  raised.attr("count") = damage.size();
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void set_patch_error(const char* name, const Error& error) {
  set_error(py::module_::import("safetensors._delta.errors").attr(name), error, 0, {});
}

void set_error(py::handle type, const Error& error) {
  set_error(type, error, error.os_error(), error.path());
}

/// Sets the Python exception that the error was made from, if it is no error of a reader's: one of
/// this package, KeyboardInterrupt or MemoryError.
bool restore_cause(const Error& error) {
  const py::object cause = cause_of(error);
  if (!cause) return false;
  const bool is_own = py::isinstance(cause, error_class) ||
                      !py::isinstance(cause, PyExc_Exception) ||
                      py::isinstance(cause, PyExc_MemoryError);
  if (is_own) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.ptr())), cause.ptr());
  return is_own;
}

void set_error(const Error& error) {
  if (restore_cause(error)) return;
  switch (error.code()) {
    case ErrorCode::kIo:
      if (error.os_error() == 0) {  // of a source that is no file
        set_error(class_of_both(PyExc_OSError), error, 0, {});
        return;
      }
      set_error(class_with_text(os_error_class(error.os_error())), error);
      return;
    case ErrorCode::kNotRegularFile:
      if (error.os_error() != 0) {
        set_error(class_with_text(os_error_class(error.os_error())), error);
      } else {
        set_error(class_of_both(PyExc_OSError), error, ENODEV, error.path());
      }
      return;
    case ErrorCode::kOutOfMemory:
      set_error(PyExc_MemoryError, error);
      return;
    case ErrorCode::kIndexOutOfBounds:
    case ErrorCode::kTooManyIndices:
      set_error(class_of_both(PyExc_IndexError), error);
      return;
    case ErrorCode::kInvalidSlice:
      set_error(class_of_both(PyExc_ValueError), error);
      return;
    case ErrorCode::kInvalidPatch:
      set_patch_error("PatchError", error);
      return;
    case ErrorCode::kWrongBase:
      set_patch_error("WrongBaseError", error);
      return;
    case ErrorCode::kPatchApplied:
      set_patch_error("AlreadyAppliedError", error);
      return;
    case ErrorCode::kDamaged:
      set_integrity_error(error);
      return;
    case ErrorCode::kNoModel:
      set_error(class_of_both(PyExc_FileNotFoundError), error, ENOENT, error.path());
      return;
    case ErrorCode::kInvalidHeaderUtf8:
    case ErrorCode::kInvalidHeaderJson:
    case ErrorCode::kHeaderTooLarge:
    case ErrorCode::kHeaderTooSmall:
    case ErrorCode::kInvalidHeaderLength:
    case ErrorCode::kDuplicateName:
    case ErrorCode::kInvalidOffset:
    case ErrorCode::kInvalidTensorInfo:
    case ErrorCode::kIncompleteData:
    case ErrorCode::kOverflow:
    case ErrorCode::kMisalignedSlice:
    case ErrorCode::kTensorNotFound:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupportedDtype:
    case ErrorCode::kFileChanged:
    case ErrorCode::kDevice:
    case ErrorCode::kWrittenTwice:
    case ErrorCode::kMissingTensors:
    case ErrorCode::kOutOfOrder:
    case ErrorCode::kWriterClosed:
    case ErrorCode::kSeveralModels:
    case ErrorCode::kIncompleteModel:
      break;
  }
  set_error(error_class, error, 0, {});
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

Error tensor_error(ErrorCode code, const std::string& text, const TensorOrigin& origin) {
  const std::string tensor(origin.name);
  return {
      code,
      text + ": tensor `" + tensor + "`",
      {.path = origin.file == nullptr ? std::filesystem::path() : *origin.file, .subject = tensor}};
}

void raise_safetensor_error(ErrorCode code, std::string_view message, std::string_view subject) {
  raise_plain({code, std::string(message), {.subject = std::string(subject)}});
}

void raise_plain(const Error& error) {
  set_error(error_class, error, 0, {});
  throw py::error_already_set();
}

void raise_both(PyObject* base, const Error& error) {
  set_error(class_of_both(base), error, 0, {});
  throw py::error_already_set();
}

void raise_unsaved(const Error& error, const std::filesystem::path& path) {
  if (error.os_error() == 0) throw error;
  set_error(class_of_both(os_error_class(error.os_error())), error, error.os_error(), path);
  throw py::error_already_set();
}

void register_errors(py::module_& module) {
  error_class =
      PyErr_NewExceptionWithDoc(kErrorName, kErrorDoc, PyExc_Exception, error_fields().ptr());
  if (error_class == nullptr) throw py::error_already_set();
  module.add_object("SafetensorError", py::handle(error_class));
  py::register_local_exception_translator(&translate);
  define(
      module, "_error_class", [](py::handle base) { return class_of_both(base); }, py::arg("base"));
  define(
      module, "_os_error_class", [](py::handle base) { return class_with_text(base); },
      py::arg("base"));
}

}  // namespace safetensors::python

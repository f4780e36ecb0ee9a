#include "python_exception.hpp"

#include <memory>
#include <utility>

#include "any_thread_gil.hpp"

namespace safetensors::python {
namespace {

/// An exception object, which any thread may release.
class PythonException {
 public:
  explicit PythonException(py::object object)
      : object_(object.release().ptr(), [](PyObject* released) {
          const AnyThreadGil gil;
          if (gil) Py_DECREF(released);
        }) {}
  [[nodiscard]] py::object object() const {
    return py::reinterpret_borrow<py::object>(object_.get());
  }

 private:
  std::shared_ptr<PyObject> object_;
};

/// Returns "ConnectionResetError: [Errno 104] Connection reset by peer".
std::string describe(const py::object& exception) {
  std::string text = type_name(exception);
  try {
    const auto details =
        py::cast<std::string>(py::str(exception).attr("encode")("utf-8", "replace"));
    const std::string line = details.substr(0, details.find_first_of("\r\n"));
    if (!line.empty()) text += ": " + line;
  } catch (py::error_already_set&) {
    return text;  // its __str__ raised
  }
  return text;
}

bool says_changed(const py::object& exception) {
  try {
    const py::object code = py::getattr(exception, "code", py::none());
    return py::isinstance<py::str>(code) && py::cast<std::string>(code) == "file_changed";
  } catch (py::error_already_set&) {
    return false;
  }
}

}  // namespace

Error take_python_error(const std::string& message, const std::filesystem::path& path) {
  py::object exception;
  {
    const py::error_already_set error;
    exception = error.value();
    if (error.trace()) PyException_SetTraceback(exception.ptr(), error.trace().ptr());
  }
  const ErrorCode code = says_changed(exception) ? ErrorCode::kFileChanged : ErrorCode::kIo;
  const std::string text = message + describe(exception);
  return {code,
          text,
          {.path = path, .cause = std::make_exception_ptr(PythonException(std::move(exception)))}};
}

py::object cause_of(const Error& error) {
  const std::exception_ptr cause = error.cause();
  if (!cause) return {};
  try {
    std::rethrow_exception(cause);
  } catch (const PythonException& python) {
    return python.object();
  } catch (...) {
    return {};
  }
}

}  // namespace safetensors::python

#include "open_hook.hpp"

#if defined(__linux__)
#include <fcntl.h>

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/posix/detach_mappings.hpp"
#include "python.hpp"

namespace safetensors::python {
namespace {

/// Returns whether a file that is opened with these flags can lose or change bytes that it has.
bool may_overwrite(long flags) noexcept {
  if ((flags & O_EXCL) != 0) return false;  // a new file
  if ((flags & O_TRUNC) != 0) return true;
  return (flags & O_ACCMODE) != O_RDONLY && (flags & O_APPEND) == 0;
}

/// Returns the path that an event announces to be overwritten; nullptr if it is another event.
PyObject* overwritten_path(std::string_view event, PyObject* arguments) {
  if (!event.starts_with('o')) return nullptr;                // most events
  if (event == "open" && PyTuple_GET_SIZE(arguments) == 3) {  // path, mode, flags
    PyObject* const flags = PyTuple_GET_ITEM(arguments, 2);
    if (!PyLong_Check(flags) || !may_overwrite(PyLong_AsLong(flags))) return nullptr;
  } else if (event != "os.truncate" || PyTuple_GET_SIZE(arguments) == 0) {  // path, length
    return nullptr;
  }
  PyObject* const path = PyTuple_GET_ITEM(arguments, 0);
  return PyLong_Check(path) ? nullptr : path;  // a descriptor: the file is open already
}

/// Returns 0, or -1 and Python's error if warnings are errors.
int warn(std::string_view what) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "surrogateescape");
  if (text == nullptr) return -1;
  const int result = PyErr_WarnFormat(
      PyExc_RuntimeWarning, 1,
      "arrays are views of a file that is about to be overwritten, and lose their values: %U",
      text);
  Py_DECREF(text);
  return result;
}

// Runs also in subinterpreters, so it keeps no Python objects. No interrupt: a signal handler in
// Python could open the file again.
int on_event(const char* event, PyObject* arguments, void* /*data*/) {
  PyObject* const path = overwritten_path(event, arguments);
  if (path == nullptr) return 0;
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path, &bytes) == 0) {  // the call itself will raise an error
    PyErr_Clear();
    return 0;
  }
  const auto name = py::reinterpret_steal<py::object>(bytes);
  try {
    io::detach_if_mapped(std::filesystem::path(PyBytes_AS_STRING(bytes)));
    return 0;
  } catch (const std::exception& error) {
    return warn(error.what());
  }
}

}  // namespace

void detail::add_open_hook() noexcept {
  if (has_open_hook.exchange(true)) return;
  // Another hook may refuse new ones: then nothing is kept, as without this function.
  if (PySys_AddAuditHook(&on_event, nullptr) != 0) PyErr_Clear();
}

}  // namespace safetensors::python
#endif

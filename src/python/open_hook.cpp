#include "open_hook.hpp"

#if !defined(_WIN32)
#include <fcntl.h>

#include "gil.hpp"
#include "python.hpp"

namespace safetensors::python {

void announce_change(const std::filesystem::path& path) {
  const GilAcquire gil;
  if (PySys_Audit("open", "OOi", to_object(path).ptr(), Py_None, O_RDWR) != 0) {
    throw py::error_already_set();
  }
}

}  // namespace safetensors::python
#endif

#if defined(__linux__)
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "io/posix/detach_mappings.hpp"

namespace safetensors::python {
namespace {

namespace fs = std::filesystem;

/// Returns whether a file that is opened with these flags can lose or change bytes that it has. One
/// that is opened to append can be truncated, too.
bool may_overwrite(long flags) noexcept {
  constexpr long kNew = O_CREAT | O_EXCL;
  if ((flags & kNew) == kNew) return false;
  return (flags & O_TRUNC) != 0 || (flags & O_ACCMODE) != O_RDONLY;
}

/// Returns the path or descriptor that an event announces to be overwritten; nullptr if it is
/// another event.
PyObject* overwritten_file(std::string_view event, PyObject* arguments) {
  if (!event.starts_with('o')) return nullptr;                // most events
  if (event == "open" && PyTuple_GET_SIZE(arguments) == 3) {  // path, mode, flags
    PyObject* const flags = PyTuple_GET_ITEM(arguments, 2);
    if (!PyLong_Check(flags) || !may_overwrite(PyLong_AsLong(flags))) return nullptr;
    PyObject* const path = PyTuple_GET_ITEM(arguments, 0);
    return PyLong_Check(path) ? nullptr : path;  // a descriptor: the file is open already
  }
  const bool truncates = event == "os.truncate" && PyTuple_GET_SIZE(arguments) > 0;
  return truncates ? PyTuple_GET_ITEM(arguments, 0) : nullptr;  // path or descriptor, length
}

/// Returns the path of what overwritten_file() returned; an empty one if the call itself will raise
/// an error.
fs::path path_of(PyObject* file) {
  if (PyLong_Check(file)) {
    int overflow = 0;
    const long descriptor = PyLong_AsLongAndOverflow(file, &overflow);
    return "/proc/self/fd/" + std::to_string(descriptor);
  }
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(file, &bytes) == 0) {
    PyErr_Clear();
    return {};
  }
  const auto name = py::reinterpret_steal<py::object>(bytes);
  return PyBytes_AS_STRING(bytes);
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

/// Also looks in the folders that this process has open: os.open() has an argument `dir_fd`, which
/// the event does not tell.
void detach_in_open_folders(const fs::path& relative) {
  std::error_code error;
  const fs::directory_iterator end;
  for (fs::directory_iterator at("/proc/self/fd", error); !error && at != end;
       at.increment(error)) {
    std::error_code unknown;
    if (at->is_directory(unknown)) io::detach_if_mapped(at->path() / relative);
  }
}

// Runs also in subinterpreters, so it keeps no Python objects. No interrupt: a signal handler in
// Python could open the file again.
int on_event(const char* event, PyObject* arguments, void* /*data*/) {
  PyObject* const given = overwritten_file(event, arguments);
  if (given == nullptr) return 0;
  try {
    const fs::path file = path_of(given);
    if (file.empty()) return 0;
    io::detach_if_mapped(file);
    // Of os.open(); open() gives its mode.
    const bool has_folder = event[1] == 'p' && PyTuple_GET_ITEM(arguments, 1) == Py_None;
    if (has_folder && file.is_relative()) detach_in_open_folders(file);
    return 0;
  } catch (const std::exception& error) {
    return warn(error.what());
  }
}

}  // namespace

void hook::add_open_hook() noexcept {
  if (has_open_hook.exchange(true)) return;
  // Another hook may refuse new ones: then nothing is kept, as without this function.
  if (PySys_AddAuditHook(&on_event, nullptr) != 0) PyErr_Clear();
}

}  // namespace safetensors::python
#endif

// Errors of the core as Python exceptions.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "python.hpp"

namespace safetensors::python {

/// What errors about a tensor name: it and, unless it is in memory only, its file. Refers to both.
struct TensorOrigin {
  std::string_view name;
  const std::filesystem::path* file = nullptr;
};

/// Returns an error whose text ends with the names of the tensor and its file.
[[nodiscard]] Error tensor_error(ErrorCode code, const std::string& text,
                                 const TensorOrigin& origin);

/// Raises SafetensorError. `subject` is the tensor or key at fault, if there is one.
[[noreturn]] void raise_safetensor_error(ErrorCode code, std::string_view message,
                                         std::string_view subject = {});

/// Raises the error as a class that derives from SafetensorError and `base`. Upstream raises the
/// former, Python's conventions require the latter; programs can catch either.
[[noreturn]] void raise_both(PyObject* base, const Error& error);

/// Raises the error as SafetensorError and nothing else.
[[noreturn]] void raise_plain(const Error& error);

/// Raises an error of saving. If it is from the system, the class derives from SafetensorError,
/// which upstream raises, and from the subclass of OSError for its errno.
[[noreturn]] void raise_unsaved(const Error& error, const std::filesystem::path& path);

/// Calls `make` in a function that Python calls without pybind11. Returns its result; null, with
/// the Python error set, if it throws.
template <typename Make>
PyObject* guarded(const Make& make) {
  try {
    return py::object(make()).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

/// Runs `save`, which writes the file at `path`, and returns its result. Raises its errors by
/// raise_unsaved().
template <typename Save>
auto saving(const std::filesystem::path& path, const Save& save) {
  try {
    return save();
  } catch (const Error& error) {
    raise_unsaved(error, path);
  }
}

}  // namespace safetensors::python

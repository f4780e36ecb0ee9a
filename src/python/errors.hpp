// Errors of the core as Python exceptions.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Raises SafetensorError.
[[noreturn]] void raise_safetensor_error(std::string_view message);

/// Raises the error as SafetensorError and as `base` at once: upstream raises the one, Python's own
/// rules and other frameworks the other, and programs catch either.
[[noreturn]] void raise_both(PyObject* base, const Error& error);

/// Raises a refusal to save by the system as SafetensorError, as upstream does, and as the right
/// OSError.
[[noreturn]] void raise_unsaved(const Error& error, const std::filesystem::path& path);

/// What `make` returns, for a function that Python calls without pybind11; null, with the error
/// set, when it throws.
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

/// Runs `save`, which writes the file at `path`.
template <typename Save>
auto saving(const std::filesystem::path& path, const Save& save) {
  try {
    return save();
  } catch (const Error& error) {
    raise_unsaved(error, path);
  }
}

}  // namespace safetensors::python

// Errors of the core as Python exceptions.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Raises SafetensorError.
[[noreturn]] void raise_safetensor_error(std::string_view message);

/// Raises `message` as SafetensorError and as `base` at once: upstream raises the one, Python's
/// own rules and other frameworks the other, and programs catch either.
[[noreturn]] void raise_both(PyObject* base, std::string_view message, int os_error = 0);

/// Runs `save`. A refusal by the system is raised as SafetensorError, as upstream does, and as the
/// right OSError.
template <typename Save>
auto saving(const Save& save) {
  try {
    return save();
  } catch (const Error& error) {
    if (error.os_error() == 0) throw;
    raise_both(PyExc_OSError, error.what(), error.os_error());
  }
}

}  // namespace safetensors::python
